"""Containers by RunTimeCreate and RunTimeStart: how their end is seen, and at what price.

Containers guide: "the start and create operations require that Slurm polls the OCI runtime".
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.supervisor.reapers import site_commands as minder

pytestmark = pytest.mark.covers("oci.conf RunTimeQuery")

QUERY = """\
echo >>{calls}
[ "$(wc -l <{calls})" -gt {creating} ] || {{ echo '{{"status": "creating"}}'; exit; }}
case $(cut -d' ' -f3 /proc/{pid}/stat 2>/dev/null) in
'' | Z) echo '{{"status": "stopped", "pid": 0}}' ;;
*) echo '{{"status": "running", "pid": {told}}}' ;;
esac
"""


class Kept:
    """A container whose runtime keeps its own parent: here that is the test."""

    def __init__(self, directory: Path, seconds: float) -> None:
        self._process = subprocess.Popen(["sleep", str(seconds)])
        self._reaper = threading.Thread(target=self._reap)
        self._reaper.start()
        self.ended = 0.0
        self._calls = directory / "calls"
        self._log = directory / "log"

    def _reap(self) -> None:
        self._process.wait()
        self.ended = time.monotonic()

    def mind(self, told: int | None = None, creating: int = 0) -> tuple[float, int]:
        """Have it minded; return how late its end was seen, and how often was asked."""
        pid = self._process.pid
        query = QUERY.format(
            calls=self._calls, pid=pid, told=pid if told is None else told, creating=creating
        )
        words = ["-1", str(self._log), "true", "true", query]
        command = [sys.executable, "-I", "-S", minder.__file__, *words]
        done = subprocess.run(command, timeout=60, check=False)
        late = time.monotonic()
        self._reaper.join()
        assert done.returncode == 0
        late -= self.ended
        print(f"{late * 1000:.0f} ms late, asked {len(self._calls.read_text())} times")
        return late, len(self._calls.read_text())

    def end(self) -> None:
        self._process.kill()
        self._reaper.join()


@pytest.fixture
def kept(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Kept]:
    container = Kept(tmp_path, request.param)
    yield container
    container.end()


@pytest.mark.covers("guide run is better than create and start")
@pytest.mark.parametrize("kept", [0.5, 2.0], indirect=True)
def test_by_a_pidfd(kept: Kept) -> None:
    """Asked twice for the pid of the state, however long it runs; and once when it has ended."""
    late, asked = kept.mind()
    assert asked == 2
    assert late < 0.5


@pytest.mark.covers("guide run is better than create and start")
@pytest.mark.parametrize("kept", [2.0], indirect=True)
def test_by_asking_with_growing_pauses(kept: Kept) -> None:
    """The runtime's pid is none of this PID namespace."""
    late, asked = kept.mind(told=0)
    assert 5 <= asked <= 14
    assert late < 1.5


@pytest.mark.parametrize("kept", [1.0], indirect=True)
def test_while_it_is_being_created(kept: Kept) -> None:
    late, asked = kept.mind(creating=3)
    assert asked == 5
    assert late < 0.5


@pytest.mark.parametrize(
    ("create", "start", "query", "status", "reason"),
    [
        ("exit 7", "true", "true", 7, ""),
        ("true", "echo no such thing >&2; exit 3", "echo '{\"pid\": 0}'", 1, "no such thing"),
        ("true", "exit 3", "echo '{\"pid\": 0}'", 1, "RunTimeStart failed: exit 3"),
        ("true", "true", "false", 1, "RunTimeQuery does not know the new container: false"),
        ("(sleep 0.3; exit 9) & echo $! >pid", "true", "echo '{\"pid\":' $(cat pid) }", 9, ""),
        ("(sleep 0.3; kill -9 $(sh -c 'echo $PPID')) & echo $! >pid", "true",
         "echo '{\"pid\":' $(cat pid) }", 137, ""),
    ],
)  # fmt: skip
def test_what_becomes_of_it(
    tmp_path: Path, create: str, start: str, query: str, status: int, reason: str
) -> None:
    log = tmp_path / "log"
    words = ["-1", str(log), create, start, query]
    command = [sys.executable, "-I", "-S", minder.__file__, *words]
    done = subprocess.run(command, timeout=60, check=False, cwd=tmp_path, capture_output=True)
    assert done.returncode == status, done.stderr
    assert (reason in log.read_text()) if reason else not log.exists()


@pytest.mark.parametrize("words", [0, 1, 2])
def test_it_waits_for_the_word(tmp_path: Path, words: int) -> None:
    """It says when the container is created, and is started; two supervisors may ask for that."""
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    create = "sleep 600 & echo $! >pid"
    query = "echo '{\"pid\":' $(cat pid) }"
    call = [str(theirs.fileno()), str(tmp_path / "log"), create, "touch started", query]
    command = [sys.executable, "-I", "-S", minder.__file__, *call]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=tmp_path)
    theirs.close()
    assert ours.recv(1) == b"\n"
    pid = int((tmp_path / "pid").read_text())
    if words:
        ours.send(b"\n" * words)
        assert ours.recv(1) == b"\n"
        assert (tmp_path / "started").exists()
        with contextlib.suppress(ConnectionResetError):  # the second word is nobody's
            assert ours.recv(1) == b""
    assert process.poll() is None
    os.kill(pid, signal.SIGTERM)
    assert process.wait(10) == 128 + signal.SIGTERM
    assert (tmp_path / "started").exists() is bool(words)
    ours.close()


def test_a_container_that_nobody_starts(tmp_path: Path) -> None:
    """Who would have told it to has gone: its keepalive removes it, and it ends with that."""
    ours, theirs = socket.socketpair()
    create, query = "sleep 600 & echo $! >pid", "echo '{\"pid\":' $(cat pid) }"
    call = [str(theirs.fileno()), str(tmp_path / "log"), create, "touch started", query]
    command = [sys.executable, "-I", "-S", minder.__file__, *call]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=tmp_path)
    theirs.close()
    assert ours.recv(1) == b"\n"
    ours.close()
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert process.wait(10) == 137
    assert not (tmp_path / "started").exists()
