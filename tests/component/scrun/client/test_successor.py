"""What a command does that comes while a container is adopted (docs/decisions/adoption.md)."""

import fcntl
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from scrun.client.reach import wait_for_successor
from scrun.commands.list import rows
from scrun.model import adoption
from scrun.model.adoption import held_record
from scrun.model.identity import myself
from scrun.model.record import ProcessIdentity, Record, write_record
from scrun.supervisor.containers import orphans
from scrun.supervisor.containers.records import link
from tests.harness.wait import wait_until

_OLD, _NEW = "@user-old", "@user-new"


def of_process(pid: int) -> ProcessIdentity:
    """The identity of another process of this machine."""
    us = myself()
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        started = int(file.read().rpartition(")")[2].split()[19])
    return ProcessIdentity(pid, started, us.pid_namespace, us.boot, us.host)


class Left:
    """A record whose lock is held by what its supervisor has left."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root, self._stack = root, stack
        self.supervisor = subprocess.Popen(["sleep", "60"])
        stack.callback(self.supervisor.wait)
        stack.callback(self.supervisor.kill)
        self.directory = root / "c1"
        self.directory.mkdir()
        link(str(self.directory), _OLD)
        self._note(of_process(self.supervisor.pid))
        self._lock = stack.enter_context((self.directory / "lock").open("w"))
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def _note(self, supervisor: ProcessIdentity) -> None:
        record = Record(id="c1", status="running", supervisor=supervisor)
        write_record(str(self.directory), record)

    def kill(self) -> None:
        self.supervisor.send_signal(signal.SIGKILL)
        self.supervisor.wait()

    def let_go(self) -> None:
        self._lock.close()

    def adopt(self) -> None:
        """As a successor does: its socket, the link, the record."""
        listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(self.root / _NEW))
        listener.listen()
        link(str(self.directory), _NEW)
        self._note(myself())


@pytest.fixture
def left(tmp_path: Path) -> Iterator[Left]:
    with ExitStack() as stack:
        yield Left(tmp_path, stack)


def test_one_that_is_adopted_at_this_moment(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    """The successor comes after a vain attempt to connect, and before a look at the record."""

    def look(directory: str) -> Record | None:
        if not os.path.lexists(left.root / _NEW):
            left.adopt()
        return held_record(directory)

    left.kill()
    monkeypatch.setattr(adoption, "held_record", look)
    sock = wait_for_successor(str(left.directory))
    assert sock is not None
    sock.close()


def test_one_whose_supervisor_is_dying(left: Left) -> None:
    """Its socket is closed already, and it is not dead yet."""
    found: list[object] = []
    asking = threading.Thread(target=lambda: found.append(wait_for_successor(str(left.directory))))
    asking.start()
    asking.join(0.2)
    assert asking.is_alive()
    [row] = rows(str(left.root), ["c1"])
    assert row["status"] == "running"
    left.kill()
    left.adopt()
    wait_until("an answer", lambda: found, 20)
    asking.join()
    [sock] = found
    assert isinstance(sock, socket.SocketType)
    sock.close()


def test_nobody_waits_for_one_that_is_not_left_to_anybody(left: Left) -> None:
    left.kill()
    write_record(str(left.directory), Record(id="c1", status="stopped", supervisor=myself()))
    assert wait_for_successor(str(left.directory)) is None


def test_one_that_is_cleaned_up_is_stopped(left: Left) -> None:
    """Whoever does that holds its lock, too, and lives."""
    left.kill()
    left.let_go()
    lock = orphans.own_orphan(str(left.directory))
    assert lock is not None
    [row] = rows(str(left.root), ["c1"])
    assert row["status"] == "stopped"
    assert held_record(str(left.directory)) is None
    os.close(lock)
