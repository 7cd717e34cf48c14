"""Children of the shim that become no program."""

import os
from pathlib import Path

import pytest

from scrun.supervisor.shim.children import Children


def become(program: str, place: Path) -> int:
    """Return the exit status of a child in a directory."""
    pid = Children().spawn([program], lambda _: None, (None, None, 2), str(place))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_directory_that_is_gone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What was to be done was about a container that has been deleted meanwhile."""
    assert become("/bin/true", tmp_path / "gone") == 127
    assert capfd.readouterr().err == ""


def test_a_program_that_is_gone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert become(f"{tmp_path}/gone", tmp_path) == 127
    assert f"{tmp_path}/gone: " in capfd.readouterr().err
