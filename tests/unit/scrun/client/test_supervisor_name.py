"""Which supervisors could serve a step of a build, whose mounts are its own."""

import socket
from pathlib import Path

from scrun.client.supervisor_name import beside
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
