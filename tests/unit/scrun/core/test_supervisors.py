"""The names of supervisors, and their versions."""

from pathlib import Path

import pytest

from scrun.core.supervisors import is_newer, parts, successor_of
from scrun.core.version import VERSION
from scrun.supervisor.daemon.succession import predecessors

_NAMESPACES = "4026531837-4026531841-4026531836"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"@user-{_NAMESPACES}-0.1.0", (f"@user-{_NAMESPACES}", "0.1.0", False)),
        (f"@user-{_NAMESPACES}-0.1.0-77", (f"@user-{_NAMESPACES}", "0.1.0", True)),
        (f"@pod-ab12-{_NAMESPACES}-1.0rc1", (f"@pod-ab12-{_NAMESPACES}", "1.0rc1", False)),
        (f"@user-{_NAMESPACES}-0.1.0.lock", ("", "", False)),
        (f"@user-{_NAMESPACES}-0.1.0-77.lock", ("", "", False)),
        ("@supervisor.log", ("", "", False)),
        ("@tmp@user", ("", "", False)),
        ("c1", ("", "", False)),
    ],
)
def test_parts(name: str, expected: tuple[str, str, bool]) -> None:
    assert parts(name) == expected


@pytest.mark.parametrize(
    ("version", "than", "expected"),
    [
        ("0.2.0", "0.1.0", True),
        ("0.10.0", "0.9.1", True),
        ("0.1.0", "0.1.0", False),
        ("0.1", "0.1.0", False),
        ("0.1.0.1", "0.1.0", True),
        ("0.2.0", "0.2.0.dev1", True),
        ("0.2.0.dev1", "0.2.0", False),
        ("0.2.0.dev1", "0.1.0", True),
        ("", "0.1.0", False),
    ],
)
def test_is_newer(version: str, than: str, expected: bool) -> None:
    assert is_newer(version, than) is expected


def test_a_successor_has_our_version() -> None:
    assert successor_of(f"@user-{_NAMESPACES}-0.0.7-12") == f"@user-{_NAMESPACES}-{VERSION}"
    assert successor_of("@x") == "@x"


def test_predecessors(tmp_path: Path) -> None:
    """Older versions, and those that have stepped aside; of the same containers and namespaces."""
    name = f"@user-{_NAMESPACES}-0.2.0"
    before = {f"@user-{_NAMESPACES}-0.1.9", f"{name}-77", f"@user-{_NAMESPACES}-0.1.9-12"}
    for entry in (
        *(name, f"{name}.lock", f"@user-{_NAMESPACES}-0.3.0", f"@user-{_NAMESPACES}-0.3.0-9"),
        *(f"@pod-ab12-{_NAMESPACES}-0.1.9", "@user-1-2-3-0.1.9", "@supervisor.log", "c1"),
        *before,
    ):
        (tmp_path / entry).touch()
    assert set(predecessors(str(tmp_path), name)) == before
    assert predecessors(str(tmp_path), "@x") == []
