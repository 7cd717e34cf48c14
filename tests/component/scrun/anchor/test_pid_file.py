"""The file of `--pid-file`, in places that others have been at."""

import fcntl
import os
from pathlib import Path

import pytest

from scrun.anchor.pid_file import PidFile
from tests.harness.places import KINDS
from tests.harness.users import root


@pytest.mark.covers("security to lock a pid file")
def test_pid_file_is_locked_before_anybody_else_can_open_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory for all another user could take the lock first, and `create` fail."""
    modes = []
    flock = fcntl.flock

    def locked(fd: int, operation: int) -> None:
        modes.append(os.fstat(fd).st_mode & 0o777)
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", locked)
    file = PidFile(str(tmp_path / "pid"))
    assert modes == [0o600]
    file.write(1)
    file.publish()
    os.close(file.lock)
    assert (tmp_path / "pid").stat().st_mode & 0o777 == 0o644


def test_pid_file_with_the_longest_name(tmp_path: Path) -> None:
    path = tmp_path / ("p" * 255)
    file = PidFile(str(path))
    file.write(7)
    file.publish()
    os.close(file.lock)
    assert path.read_text() == "7"
    with pytest.raises(OSError, match=f"--pid-file {path}x"):
        PidFile(f"{path}x")


@pytest.mark.parametrize("kind", ["a directory", "a FIFO", "a socket", "/dev/full"])
def test_pid_file_takes_no_other_place(tmp_path: Path, kind: str) -> None:
    """As root, rename(2) would put it in the place of /dev/null."""
    path = tmp_path / "pid"
    KINDS[kind](path, root())
    before = path.lstat()
    with pytest.raises(OSError, match="exists and is not a file"):
        PidFile(str(path))
    assert path.lstat() == before
    assert os.listdir(tmp_path) == ["pid"]
