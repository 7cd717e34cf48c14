"""Which supervisors could serve a step of a build, whose mounts are its own."""

import socket
from pathlib import Path

import pytest

from scrun.cli.parse import parse
from scrun.client import supervisor_name as names
from scrun.client.supervisor_name import beside, supervisor_name
from scrun.core.place import Place
from scrun.core.version import VERSION


def test_supervisors_that_differ_in_their_mounts_alone(tmp_path: Path) -> None:
    names = [
        f"@user-1-20-3-{VERSION}",
        f"@user-1-21-3-{VERSION}-4711",
        f"@build-1-22-3-{VERSION}",
        f"@pod-d1ce-1-23-3-{VERSION}",
        f"@user-9-24-3-{VERSION}",
        f"@user-1-25-9-{VERSION}",
        "@user-1-26-3-0.0.1",
        "@user-strange",
    ]
    for name in names:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / name))
    (tmp_path / f"@user-1-27-3-{VERSION}").touch()
    (tmp_path / f"@build-1-22-3-{VERSION}.lock").touch()
    assert beside(str(tmp_path), f"@user-1-30-3-{VERSION}") == [names[1], names[0], names[2]]
    assert beside(str(tmp_path / "none"), f"@user-1-30-3-{VERSION}") == []


@pytest.mark.parametrize(
    ("group", "begins"),
    [("user", "@step-"), ("build", "@pod-"), ("pod", "@pod-"), ("container", "@container-")],
)
def test_what_ends_with_a_step_serves_nobody_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, group: str, begins: str
) -> None:
    parsed = parse(["create", "--bundle", str(tmp_path), "c1"])
    places = [Place("7", "7.0", "0"), Place("7", "7.0", "1"), Place("7", "7.1", "0"), Place("7")]
    places += [Place("7", "7.batch"), Place("8", "8.batch"), Place("", "7.extern")]
    found = []
    for place in places:
        monkeypatch.setattr(names, "_places", [place])
        found.append(supervisor_name(group, parsed))
    assert len(set(found)) == len(places)
    outside = found.pop(3)
    assert all(name.startswith(begins) for name in found)
    assert outside.startswith(f"@{group}-")
