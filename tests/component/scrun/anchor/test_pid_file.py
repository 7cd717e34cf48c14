"""The file of `--pid-file`, in places that others have been at."""

import contextlib
import errno
import fcntl
import os
import posix
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.anchor.pid_file import PidFile
from tests.harness.places import KINDS
from tests.harness.users import root


@pytest.mark.covers("security lock a pid file")
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


@pytest.mark.covers("scrun(1) --pid-file")
def test_nothing_is_there_before_it_is_published(tmp_path: Path) -> None:
    """So nothing stays of a `create` that is killed."""
    file = PidFile(str(tmp_path / "pid"))
    file.write(7)
    assert os.listdir(tmp_path) == []
    file.publish()
    assert os.listdir(tmp_path) == ["pid"]
    os.close(file.lock)


def test_a_file_system_without_files_that_have_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = posix.open

    def opened(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & posix.O_TMPFILE == posix.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(path, flags, mode)

    monkeypatch.setattr(posix, "open", opened)
    for pid in (7, 8):
        file = PidFile(str(tmp_path / "pid"))
        [name] = set(os.listdir(tmp_path)) - {"pid"}
        assert name.startswith(".scrun-")
        file.write(pid)
        file.publish()
        assert (tmp_path / "pid").read_text() == str(pid)
        os.close(file.lock)
    PidFile(str(tmp_path / "pid")).discard()
    assert os.listdir(tmp_path) == ["pid"]


# who starts services sees one of both
LOCKS = {
    "flock": "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
    "fcntl": "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
}
HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+")
try:
    {lock}
except OSError:
    print("locked", flush=True)
else:
    print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def locked_by(path: Path, lock: str) -> Iterator[str]:
    """Have another process lock a file; whether it could."""
    program = [sys.executable, "-c", HOLD.format(lock=LOCKS[lock]), str(path)]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.covers("scrun(1) --pid-file")
@pytest.mark.parametrize("lock", LOCKS)
def test_a_file_that_somebody_holds_locked_is_not_replaced(tmp_path: Path, lock: str) -> None:
    path = tmp_path / "pid"
    path.write_text("1")
    with locked_by(path, lock) as said:
        assert said == "held"
        with pytest.raises(OSError, match="is locked: its process lives"):
            PidFile(str(path))
        assert path.read_text() == "1"
    file = PidFile(str(path))
    file.write(7)
    file.publish()
    with locked_by(path, lock) as said:
        assert said == "locked"
    with pytest.raises(OSError, match="is locked: its process lives"):
        PidFile(str(path))
    os.close(file.lock)
    with locked_by(path, lock) as said:
        assert said == "held"
    assert os.listdir(tmp_path) == ["pid"]


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
