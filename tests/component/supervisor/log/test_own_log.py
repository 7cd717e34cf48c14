"""The supervisor's own log: what it has when something goes wrong, and whom that concerns."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.core.paths import OWN_LOG
from scrun.protocol import wire
from scrun.supervisor.log import supervisor_log as log
from tests import CHECKOUT
from tests.component.supervisor.daemon.test_server import NAME, NOBODY, base, everything, running
from tests.harness import users
from tests.harness.processes import peer
from tests.harness.wait import wait_until, wait_while

__all__ = ["base"]  # a fixture
MAIN = "from scrun.supervisor.__main__ import main; import sys; sys.exit(main(sys.argv[1:]))"


class Detached:
    """A supervisor as `scrun create` starts it, with a program that may break it before."""

    def __init__(self, base: Path, before: str = "", idle: str = "60") -> None:
        self.root = base / "root"
        self.root.mkdir(mode=0o700)
        self.log = self.root / OWN_LOG
        readable, writable = os.pipe()
        program = [sys.executable, "-c", f"{before}\n{MAIN}", "--root", str(self.root)]
        subprocess.run(
            [*program, "--name", NAME, "--ready", str(writable), "--idle-timeout", idle],
            stdin=subprocess.DEVNULL,
            pass_fds=[writable],
            cwd=CHECKOUT,
            env={"PATH": users.PATH, "PYTHONPATH": str(CHECKOUT)},
            timeout=60,
            check=False,
        )
        os.close(writable)
        with open(readable, "rb") as pipe:
            assert pipe.read() == b"ready"
        with self.connect() as sock:
            self.pid = peer(sock)
            self.pidfd = os.pidfd_open(self.pid)

    def connect(self) -> socket.socket:
        return socket.socket(fileno=wire.connect(str(self.root), NAME).detach())

    def ask(self, *fields: bytes) -> bytes:
        with self.connect() as sock, contextlib.suppress(ConnectionError):
            sock.sendall(wire.frame(list(fields)))
            return everything(sock)
        return b""

    @property
    def runs(self) -> bool:
        return os.path.exists(f"/proc/{self.pid}")

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)


@contextlib.contextmanager
def detached(base: Path, before: str = "", idle: str = "60") -> Iterator[Detached]:
    supervisor = Detached(base, before, idle)
    try:
        yield supervisor
    finally:
        supervisor.send(signal.SIGKILL)
        os.close(supervisor.pidfd)


def test_a_supervisor_that_crashes_leaves_a_traceback(base: Path) -> None:
    with detached(base) as supervisor:
        supervisor.send(signal.SIGSEGV)
        wait_while("supervisor", lambda: supervisor.runs)
        said = supervisor.log.read_text()
    assert "Fatal Python error: Segmentation fault" in said
    assert "trio" in said


def test_a_late_fault_is_in_the_log_and_in_nobody_elses_file(base: Path) -> None:
    """The descriptor by which it said that it is ready has been somebody else's since."""
    victim = base / "victim"
    before = f"""
import os, scrun.supervisor.daemon.server
def serve(root, name, starter, idle=None):
    server = scrun.supervisor.daemon.server.listen(root, name)
    starter.tell("ready")
    fds = [os.open({str(victim)!r}, os.O_WRONLY | os.O_CREAT, 0o600) for _ in range(20)]
    server.accept()
    raise RuntimeError("boom")
scrun.supervisor.daemon.server.serve = serve
"""
    with detached(base, before) as supervisor:
        wait_while("supervisor", lambda: supervisor.runs)
    assert victim.read_bytes() == b""
    said = (base / "root" / OWN_LOG).read_text()
    assert "internal error: RuntimeError: boom" in said
    assert "in serve" in said


def test_one_that_has_nothing_to_say_leaves_nothing(base: Path) -> None:
    with detached(base, idle="0.5") as supervisor:
        assert supervisor.log.exists()
        supervisor.ask(*NOBODY)
        wait_while("supervisor", lambda: supervisor.runs, timeout=30)
        assert not supervisor.log.exists()


@pytest.mark.parametrize(
    ("name", "request_fields"),
    [
        ("ClientRequest.answer", NOBODY),
        ("ClientRequest.answered", NOBODY),
        ("ClientRequest.confirmed", NOBODY),
        ("Containers.find", NOBODY),
    ],
)
def test_a_fault_in_a_connection_is_its_own(
    base: Path, name: str, request_fields: list[bytes]
) -> None:
    kind, method = name.split(".")
    module = {"ClientRequest": "daemon.requests", "Containers": "containers.containers"}[kind]
    before = f"""
from scrun.supervisor.{module} import {kind}
whole, broken = {kind}.{method}, [True]
def fail(*arguments):
    if broken and broken.pop():
        raise IndexError("boom")
    return whole(*arguments)
{kind}.{method} = fail
"""
    with detached(base, before) as supervisor:
        supervisor.ask(*request_fields)
        assert b"does not exist" in supervisor.ask(*NOBODY)
        said = supervisor.log.read_text()
    assert "internal error: IndexError: boom" in said
    assert re.search(r'level=error msg="  File .*, line \d+, in fail"', said)


@pytest.mark.parametrize("method", ["_run", "_finish"])
def test_a_fault_in_a_container_is_its_own(base: Path, method: str) -> None:
    """That of a bundle that cannot be run, so it takes no engine."""
    program = f"""
from scrun.supervisor.containers.container import Container
def fail(*_):
    raise ValueError("boom")
Container.{method} = fail
{MAIN}
"""
    with running(base, program=program) as supervisor:
        answer = supervisor.create(b"c1", b"/nonexistent")
        assert answer[:1] != b"\0"
        supervisor.serves()
        wait_until("the log", lambda: "ValueError: boom" in supervisor.said)


def test_the_log_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LIMIT", 2000)
    before = os.dup(2)
    path = tmp_path / OWN_LOG
    try:
        handler = log._Handler(str(path), NAME)
        for number in range(100):
            handler.handle(log.log.makeRecord("scrun", 40, "", 0, f"line {number}", (), None))
            if number == 50:
                path.unlink()  # by another supervisor, which has found nothing in it
        assert path.exists()
        os.ftruncate(2, 0)
        log.end(str(tmp_path))
        assert not path.exists()
    finally:
        os.dup2(before, 2)
        os.close(before)
    old = (tmp_path / (OWN_LOG + ".1")).read_text()
    assert len(old) < 2200
    assert "supervisor @x[" in old
