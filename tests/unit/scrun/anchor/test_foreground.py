"""A command that stays, in a process of its own; and a terminal that is set back."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.anchor.foreground import CarriedTerminal, KeptTerminal
from scrun.protocol.anchor import LOST, PASSED_ON
from tests import CHECKOUT
from tests.harness.wait import wait_until

STAYS = """
import _socket, os, sys
sys.path.insert(0, sys.argv[1])
from scrun.anchor import foreground
foreground._AGAIN, foreground._UNTAKEN = 0.3, 3.0
from scrun.core.errors import NotTaken, SupervisorLost
try:
    status = foreground.stay(_socket.socket(fileno=int(sys.argv[2])))
except (NotTaken, SupervisorLost) as error:
    status = error.exit_code
os._exit(status)
"""


class Staying:
    """A process that stays, and the supervisor's end of its socket."""

    def __init__(self) -> None:
        self.line, theirs = socket.socketpair()
        self.line.settimeout(20)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", STAYS, str(CHECKOUT), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stderr=subprocess.PIPE,
                text=True,
            )
        wanted = sum(1 << (signal.Signals["SIG" + name] - 1) for name in PASSED_ON)
        wait_until("handlers", lambda: self._caught & wanted == wanted)

    @property
    def _caught(self) -> int:
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return int(line.split()[1], 16)
        return 0

    def signal(self, name: str) -> None:
        self._process.send_signal(signal.Signals["SIG" + name])

    def status(self) -> int:
        """How it ended; it says nothing."""
        _, error = self._process.communicate(timeout=20)
        assert error == ""
        return self._process.returncode

    def close(self) -> None:
        self.line.close()
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def staying() -> Iterator[Staying]:
    with contextlib.closing(Staying()) as found:
        yield found


@pytest.mark.parametrize("parts", [[b"0\n"], [b"7\n"], [b"255\n"], [b"1", b"3", b"7", b"\n"]])
def test_the_status_is_the_program_s(staying: Staying, parts: list[bytes]) -> None:
    for part in parts:
        staying.line.sendall(part)
    assert staying.status() == int(b"".join(parts))


def test_signals_are_passed_on(staying: Staying) -> None:
    for name in (*PASSED_ON, "TERM", "TERM"):
        staying.signal(name)
        assert staying.line.recv(64) == f"{name}\n".encode()
    staying.line.sendall(b"143\n")
    assert staying.status() == 143


def test_a_status_counts_although_signals_are_unread(staying: Staying) -> None:
    staying.signal("INT")
    assert staying.line.recv(64, socket.MSG_PEEK) == b"INT\n"
    staying.line.sendall(b"3\n")
    staying.line.close()
    assert staying.status() == 3


@pytest.mark.parametrize("said", [b"", b"1"])
def test_a_lost_supervisor(staying: Staying, said: bytes) -> None:
    staying.line.sendall(said)
    staying.line.close()
    assert staying.status() == LOST


def test_a_supervisor_that_is_lost_before_it_reads_a_signal(staying: Staying) -> None:
    staying.signal("TERM")
    assert staying.line.recv(64, socket.MSG_PEEK) == b"TERM\n"
    staying.line.close()  # the other end gets ECONNRESET (unix(7))
    assert staying.status() == LOST


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "TERM"])
def test_the_second_signal_that_nobody_takes_ends_it(staying: Staying, name: str) -> None:
    """The supervisor hangs, or was stopped."""
    staying.signal("WINCH")
    staying.signal("TERM")
    time.sleep(0.4)
    staying.signal(name)
    assert staying.status() == 128 + signal.Signals["SIG" + name]


def test_the_first_signal_that_nobody_takes_ends_it_later(staying: Staying) -> None:
    began = time.monotonic()
    staying.signal("TERM")
    staying.signal("TERM")  # at once: the supervisor may just be busy
    assert staying.status() == 128 + signal.SIGTERM
    assert time.monotonic() - began > 2.9


def test_a_program_that_does_not_heed_signals(staying: Staying) -> None:
    """They are taken: as many as somebody sends."""
    for _ in range(3):
        staying.signal("TERM")
        assert staying.line.recv(64) == b"TERM\n"
        time.sleep(0.4)
    staying.signal("ALRM")
    assert staying.line.recv(64) == b"ALRM\n"
    time.sleep(3)  # the first one's time is over
    staying.signal("ALRM")
    assert staying.line.recv(64) == b"ALRM\n"
    staying.line.sendall(b"9\n")
    assert staying.status() == 9


@pytest.fixture
def pty() -> Iterator[tuple[int, int]]:
    master, end = os.openpty()
    yield master, end
    for fd in (master, end):
        with contextlib.suppress(OSError):
            os.close(fd)


def test_a_terminal_is_set_back(pty: tuple[int, int]) -> None:
    _, end = pty
    before = termios.tcgetattr(end)
    kept = KeptTerminal(end)
    kept.make_raw()
    raw = termios.tcgetattr(end)
    assert not raw[tty.LFLAG] & (termios.ICANON | termios.ECHO | termios.ISIG)
    kept.restore()
    assert termios.tcgetattr(end) == before
    kept.restore()  # as often as one likes
    assert termios.tcgetattr(end) == before


def test_what_was_typed_already_counts(pty: tuple[int, int]) -> None:
    master, end = pty
    kept = KeptTerminal(end)
    os.write(master, b"typed\n")
    kept.make_raw()
    kept.restore()
    assert os.read(end, 100) == b"typed\n"


def test_somebody_else_s_setting_is_undone(pty: tuple[int, int]) -> None:
    _, end = pty
    before = termios.tcgetattr(end)
    kept = KeptTerminal(end)
    tty.setraw(end)
    kept.restore()
    assert termios.tcgetattr(end) == before


def test_a_terminal_that_is_gone(pty: tuple[int, int]) -> None:
    master, end = pty
    kept = KeptTerminal(end)
    os.close(master)
    kept.restore()
    os.close(end)
    kept.restore()
    assert signal.getsignal(signal.SIGTTOU) == signal.SIG_DFL


def test_what_is_no_terminal_is_not_kept(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(termios.error):
        KeptTerminal(file.fileno())


IN_BACKGROUND = """
import fcntl, os, sys, termios
sys.path.insert(0, sys.argv[1])
from scrun.anchor.foreground import CarriedTerminal, KeptTerminal
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
kept = KeptTerminal(0)
kept.make_raw()
readable, writable = os.pipe()
other = os.fork()
if other == 0:
    os.close(writable)
    os.read(readable, 1)
    os._exit(0)
os.setpgid(other, other)
os.tcsetpgrp(0, other)
kept.restore()
os.write(1, b"restored" if os.tcgetpgrp(0) == other else b"?")
os.close(writable)
os.waitpid(other, 0)
"""


def test_who_is_in_the_background_is_not_stopped(pty: tuple[int, int]) -> None:
    _, end = pty
    before = termios.tcgetattr(end)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", IN_BACKGROUND, str(CHECKOUT)],
        stdin=end,
        capture_output=True,
        start_new_session=True,
        timeout=20,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == (b"restored", b"", 0)
    assert termios.tcgetattr(end) == before


def test_what_a_program_shows_before_it_has_made_its_terminal_raw() -> None:
    """runc shows output a moment before it does."""
    terminal = CarriedTerminal()
    try:
        os.write(terminal.slave, b"shown\r\n")
        assert os.read(terminal.master, 100) == b"shown\r\n"
    finally:
        os.close(terminal.slave)
        os.close(terminal.master)


DISCARDS = "python3 -c 'import termios, time; time.sleep(0.3); termios.tcflush(0, 0)'"
CARRIES = """
import os, sys
sys.path.insert(0, sys.argv[1])
from scrun.anchor.foreground import Carried
pid, master = os.forkpty()
if pid == 0:
    os.execvp("sh", ["sh", "-c", sys.argv[2]])
carried = Carried(master)
carried.carry_until(os.pidfd_open(pid))
carried.carry_the_rest()
os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize(
    ("program", "typed"),
    [
        ("cat; exit 7", b""),
        ("cat; exit 7", b"a whole line\n"),
        ("read x; exit 7", b"a part of one"),
        (
            f"{DISCARDS}; cat; exit 7",
            b"",
        ),
        ("sh -c cat; cat; cat; exit 7", b""),
    ],
)
def test_the_end_of_input_is_typed(program: str, typed: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", CARRIES, str(CHECKOUT), program],
        input=typed,
        capture_output=True,
        start_new_session=True,
        timeout=20,
        check=False,
    )
    assert (done.stderr, done.returncode) == (b"", 7)


def test_a_program_that_needs_no_input_is_let_alone() -> None:
    """End of file is typed less and less often."""
    program = "stty raw -echo; echo up; (sleep 2.5; kill $$) & exec od -An -v -tx1 -w1"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", CARRIES, str(CHECKOUT), program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        start_new_session=True,
        timeout=20,
        check=False,
    )
    up, *typed = done.stdout.split()
    assert up == b"up"
    assert set(typed) <= {b"04", b"00"}
    assert 2 <= len(typed) <= 5
