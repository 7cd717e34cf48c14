"""A command that stays: it is the anchor itself, for as long as what it has started runs.

What `create` leaves behind for engines to watch (`scrun.anchor.shell`) is here the caller's own
process: `run` and `exec` in the foreground, `shell`. The same line goes over the same socket:
signals there, the exit status back.
"""

import _signal
import _socket
import os

from scrun.protocol.anchor import LOST, PASSED_ON

_LAST_OUTPUT = 0.5
"""Seconds in which a terminal that is open still has to show something more."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


def pass_signals_on(sock: _socket.socket, carried: "CarriedTerminal | None" = None) -> None:
    """Pass signals on from now on: the program may run before we know it.

    Args:
        sock: The supervisor's.
        carried: The program's terminal, if we carry between that and our own descriptors.
    """
    names = {int(getattr(_signal, "SIG" + name)): name for name in PASSED_ON}

    def tell(number: int, frame: "FrameType | None") -> None:
        if carried and number == _signal.SIGWINCH:
            carried.resize()
        try:
            os.write(fd, names[number].encode() + b"\n")
        except OSError:
            pass

    fd = sock.fileno()
    for number in names:
        _signal.signal(number, tell)


def stay(sock: _socket.socket, carried: "CarriedTerminal | None" = None) -> int:
    """Pass signals on until the status comes; return it.

    Args:
        sock: The supervisor's.
        carried: See `pass_signals_on`.

    Raises:
        OSError: What comes from the terminal cannot be written.
    """
    pass_signals_on(sock, carried)
    fd = sock.fileno()
    said = b""
    while not said.endswith(b"\n"):
        if carried:
            carried.carry_until(fd)
        try:
            part = sock.recv(64)
        except OSError:  # it died before it had read a signal of ours
            return LOST
        if not part:
            return LOST
        said += part
    if carried:
        carried.carry_the_rest()
    return status_of(said)


def status_of(said: bytes) -> int:
    """Read the line that a supervisor ends its anchor with; what is none is the end as well."""
    return int(said) if said[:-1].isdigit() and len(said) <= 4 else LOST


def own_terminal() -> "KeptTerminal | CarriedTerminal":
    """Return a terminal for a program: the caller's, or one that we carry to what the caller has.

    It is to be asked for before anybody has made the caller's raw: `restore` sets that back.
    """
    return KeptTerminal(0) if os.isatty(0) and os.isatty(1) else CarriedTerminal()


class Carried:
    """A program's terminal, carried to what the caller has.

    What is typed or comes by the pipe goes to it, and what it shows to standard output. At the end
    of standard input nothing is typed any more.
    """

    def __init__(self, master: int) -> None:
        """Give it the size of the caller's, if that is a terminal.

        Args:
            master: The terminal's; ours from now on.
        """
        self.master = master
        os.set_blocking(self.master, False)
        self._typed = b""
        self._reads = True
        self._kept = KeptTerminal(0) if os.isatty(0) else None
        self.resize()

    def begin(self) -> None:
        """Leave every key to the program."""
        if self._kept:
            self._kept.make_raw()

    def restore(self) -> None:
        """Set the caller's terminal back."""
        if self._kept:
            self._kept.restore()

    def resize(self) -> None:
        """Give it the size of the caller's."""
        import fcntl
        import termios

        for fd in (0, 1, 2):
            if os.isatty(fd):
                size = fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8))
                fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)
                return

    def carry_until(self, fd: int) -> None:
        """Carry until a descriptor can be read.

        Raises:
            OSError: Standard output cannot be written.
        """
        import select

        while True:
            inputs = [fd, self.master, *([0] if self._reads and not self._typed else [])]
            outputs = [self.master] if self._typed else []
            ready, writable, _ = select.select(inputs, outputs, [])
            if writable:
                self._type()
            if 0 in ready:
                try:
                    self._typed = os.read(0, 4096)
                except OSError:
                    self._typed = b""
                self._reads = bool(self._typed)
            if self.master in ready and not self._show():
                select.select([fd], [], [])  # nobody has it open any more: it ends
                return
            if fd in ready:
                return

    def carry_the_rest(self) -> None:
        """Show what is there still when the program has ended.

        Raises:
            OSError: Standard output cannot be written.
        """
        import select

        while select.select([self.master], [], [], _LAST_OUTPUT)[0] and self._show():
            pass

    def _type(self) -> None:
        try:
            self._typed = self._typed[os.write(self.master, self._typed) :]
        except BlockingIOError:
            pass  # its room was taken meanwhile
        except OSError:
            self._typed = b""

    def _show(self) -> bool:
        """Write what it shows; tell whether there may be more."""
        from scrun.core.output import write

        try:
            shown = os.read(self.master, 65536)
        except BlockingIOError:
            return True
        except OSError:  # EIO: nobody has it open
            return False
        write(shown)
        return bool(shown)


class CarriedTerminal(Carried):
    """A terminal for a program whose caller lacks one at an end or both; crun and runc make one.

    `run … | tee log`, `exec -t … </dev/null`.
    """

    def __init__(self) -> None:
        """Make one.

        It is raw from the beginning, as the program has a terminal of its own behind it: runc
        begins to show output before it makes this one raw, so lines ended in two carriage returns.
        """
        import tty

        master, self.slave = os.openpty()
        tty.setraw(self.slave)
        super().__init__(master)

    def begin(self) -> None:
        """Leave the program's end to the supervisor, too."""
        os.close(self.slave)
        super().begin()


class KeptTerminal:
    """A caller's terminal that something else makes raw meanwhile: it is set back at the end.

    srun does that itself, unless it is killed.
    """

    def __init__(self, fd: int) -> None:
        """Remember how it is set."""
        import termios

        self._fd = fd
        self._attributes = termios.tcgetattr(fd)

    def make_raw(self) -> None:
        """Let every key through: what they mean is decided at the other end."""
        import termios
        import tty

        tty.setraw(self._fd, termios.TCSADRAIN)  # what was typed already counts

    def restore(self) -> None:
        """Set it back."""
        import termios

        # who was put into the background meanwhile would be stopped for this
        before = _signal.signal(_signal.SIGTTOU, _signal.SIG_IGN)
        try:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._attributes)
        except termios.error:
            pass  # hung up
        finally:
            _signal.signal(_signal.SIGTTOU, before)
