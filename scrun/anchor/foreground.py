"""A command that stays in the foreground and is the anchor itself: `run`, `exec` and `shell`.

It does what the anchor does that `create` leaves behind (`scrun.anchor.shell`), over the same
socket: it forwards signals, and receives the exit status.
"""

import _signal
import _socket
import posix
from time import monotonic

from scrun.core.errors import NotTaken, SupervisorLost
from scrun.core.output import write
from scrun.core.ready import ready
from scrun.protocol.anchor import LOST, PASSED_ON

_LAST_OUTPUT = 0.5
"""Seconds to wait for more output of a terminal that is still open after the program's end."""

_END_OF_FILE = b"\x04"  # termios(3), VEOF
_QUIET, _FIRST_PAUSE = 2.0, 0.25
"""Seconds until it is typed to a program that shows nothing, and until it is typed again."""

_ENDING = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTERM)
_AGAIN, _UNTAKEN = 1.0, 10.0
"""Seconds that the supervisor has to take a signal before the next one, and without one."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


def pass_signals_on(sock: _socket.socket, carried: "CarriedTerminal | None" = None) -> None:
    """Forward signals from now on: the program may start before the supervisor has said so."""
    passing = _Passing(sock.fileno(), carried)
    for number in passing.names:
        _signal.signal(number, passing.forward)


class _Passing:
    """Passes signals on, as long as somebody takes them.

    The supervisor may hang, or have been stopped. A signal that ends programs is not lost then:
    the second one ends this command, unless the first was taken, and so does the first one after
    a while.
    """

    def __init__(self, fd: int, carried: "CarriedTerminal | None") -> None:
        self.names = {int(getattr(_signal, "SIG" + name)): name for name in PASSED_ON}
        self._fd, self._carried = fd, carried
        self._sent = self._ends_at = 0.0
        self._first, self._has_reader = 0, True

    def forward(self, number: int, frame: "FrameType | None") -> None:
        del frame
        now = monotonic()
        if number == _signal.SIGALRM and self._first and now >= self._ends_at:
            self._end_unless_taken(self._first)
            return
        if self._carried and number == _signal.SIGWINCH:
            self._carried.resize()
        ends = number in _ENDING
        if ends and self._first and now - self._sent >= _AGAIN:
            self._end_unless_taken(number)
        try:
            posix.write(self._fd, self.names[number].encode() + b"\n")
        except OSError:
            self._has_reader = False  # what ran has ended
        if ends and not self._first:
            self._first, self._sent, self._ends_at = number, now, now + _UNTAKEN
            _signal.setitimer(_signal.ITIMER_REAL, _UNTAKEN)

    def _end_unless_taken(self, number: int) -> None:
        import fcntl
        import termios

        # how much the other end has not read: SIOCOUTQ of unix(7)
        if not self._has_reader or any(fcntl.ioctl(self._fd, termios.TIOCOUTQ, bytes(4))):
            raise NotTaken.of(number)
        self._first = 0


def stay(sock: _socket.socket, carried: "CarriedTerminal | None" = None) -> int:
    """Forward signals until the exit status comes; return that (NotTaken, SupervisorLost)."""
    pass_signals_on(sock, carried)
    fd = sock.fileno()
    line = b""
    while not line.endswith(b"\n"):
        if carried:
            carried.carry_until(fd)
        try:
            part = sock.recv(64)
        except OSError:  # it died before it had read a signal
            part = b""
        if not part:
            raise gone()
        line += part
    if carried:
        carried.carry_the_rest()
    return parse_status(line)


def gone() -> SupervisorLost:
    """Return the error for a supervisor that has died and has no successor."""
    error = SupervisorLost("the supervisor was lost, and what this command ran ends: run it again")
    error.exit_code = LOST
    return error


def parse_status(line: bytes) -> int:
    """Parse the line with the exit status; anything else also counts as the end."""
    return int(line) if line[:-1].isdigit() and len(line) <= 4 else LOST


def own_terminal() -> "KeptTerminal | CarriedTerminal":
    """Return a terminal for a program, before the caller's is raw; `restore` resets that."""
    return KeptTerminal(0) if posix.isatty(0) and posix.isatty(1) else CarriedTerminal()


class Carried:
    """A program's terminal that this process relays: standard input to it, its output to ours.

    At the end of standard input, end of file is typed, as script(1) and `ssh -tt` do: else a shell
    without a terminal, below cron for example, would wait for ever. This waits for the program's
    first output: runtimes change the mode of terminals, which spoils what was typed before. A
    program may still discard it (tcflush(3)), or another one read it in a shell's place, so it is
    typed again and again, after longer and longer pauses.
    """

    def __init__(self, master: int) -> None:
        """Take a terminal over, and give it the size of the caller's terminal, if there is one."""
        self.master = master
        posix.set_blocking(self.master, False)
        self._typed = b""
        self._line_end = b"\n"  # or the last bytes read, if no line ends there
        self._pause = 0.0  # until end of file is typed again; 0 as long as there is input
        self._ends_at = 0.0
        self._has_shown = False
        self._kept = KeptTerminal(0) if posix.isatty(0) else None
        self.resize()

    def begin(self) -> None:
        """Make the caller's terminal raw, so that every key reaches the program."""
        if self._kept:
            self._kept.make_raw()

    def restore(self) -> None:
        if self._kept:
            self._kept.restore()

    def resize(self) -> None:
        import fcntl
        import termios

        for fd in (0, 1, 2):
            if posix.isatty(fd):
                size = fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8))
                fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)
                return

    def carry_until(self, fd: int) -> None:
        while True:
            pause = self._type_end()
            inputs = [fd, self.master, *([0] if not (self._pause or self._typed) else [])]
            outputs = [self.master] if self._typed else []
            readable, writable = ready(inputs, outputs, pause)
            if writable:
                self._type()
            if 0 in readable:
                try:
                    self._typed = posix.read(0, 4096)
                except OSError:
                    self._typed = b""
                self._note_input()
            if self.master in readable and not self._show():
                ready([fd])  # nobody has it open any more: the program ends
                return
            if fd in readable:
                return

    def carry_the_rest(self) -> None:
        """Show the rest of the output after the program has ended."""
        while ready([self.master], seconds=_LAST_OUTPUT)[0] and self._show():
            pass

    def _note_input(self) -> None:
        """Note what was read, if it is not the end; then begin to type that."""
        if self._typed:
            self._line_end = self._typed[-1:]
            return
        if self._line_end not in b"\r\n":
            self._typed = (
                b"\n"  # in the middle of a line, that key does not end the file (termios(3))
            )
        self._pause = _FIRST_PAUSE
        self._ends_at = monotonic() + (0 if self._has_shown else _QUIET)

    def _type_end(self) -> "float | None":
        """Type end of file if it is time; return how long it is not."""
        if not self._pause or self._typed:
            return None
        if self._ends_at <= (now := monotonic()):
            self._typed = _END_OF_FILE
            self._ends_at = now + self._pause
            self._pause *= 2
            return None
        return self._ends_at - now

    def _type(self) -> None:
        try:
            self._typed = self._typed[posix.write(self.master, self._typed) :]
        except BlockingIOError:
            pass  # its buffer has filled up meanwhile
        except OSError:
            self._typed = b""

    def _show(self) -> bool:
        """Write some of its output; tell whether there may be more."""
        try:
            shown = posix.read(self.master, 65536)
        except BlockingIOError:
            return True
        except OSError:  # EIO: nobody has it open
            return False
        write(shown)
        if shown and not self._has_shown:
            self._has_shown, self._ends_at = True, 0
        return bool(shown)


class CarriedTerminal(Carried):
    """A new terminal, as in crun and runc, for `run … | tee log`, `exec -t … </dev/null`."""

    def __init__(self) -> None:
        """Open one, in raw mode.

        The runtime makes a second terminal behind it. runc shows output before it makes this one
        raw, which ended lines with two carriage returns.
        """
        import tty

        from scrun.core.terminal import openpty

        master, self.slave = openpty()
        tty.setraw(self.slave)
        super().__init__(master)

    def begin(self) -> None:
        """Also close the program's end, which the supervisor has now."""
        posix.close(self.slave)
        super().begin()


class KeptTerminal:
    """A caller's terminal whose settings are restored at the end.

    srun, which makes it raw, restores them itself unless it is killed.
    """

    def __init__(self, fd: int) -> None:
        import termios

        self._fd = fd
        self._attributes = termios.tcgetattr(fd)

    def make_raw(self) -> None:
        import termios
        import tty

        tty.setraw(self._fd, termios.TCSADRAIN)  # keeps what was typed already

    def restore(self) -> None:
        import termios

        # a process in the background would be stopped (SIGTTOU)
        before = _signal.signal(_signal.SIGTTOU, _signal.SIG_IGN)
        try:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._attributes)
        except termios.error:
            pass  # hung up
        finally:
            _signal.signal(_signal.SIGTTOU, before)
