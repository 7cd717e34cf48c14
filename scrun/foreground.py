"""A command that stays: it is the anchor itself, for as long as what it has started runs.

What `create` leaves behind for engines to watch (`scrun.anchor`) is here the caller's own process:
`run` and `exec` in the foreground, `shell`. The same line goes over the same socket: signals
there, the exit status back.
"""

import _signal
import _socket
import os

from scrun.anchor import LOST, PASSED_ON

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


def stay(sock: _socket.socket) -> int:
    """Pass signals on until the status comes; return it."""
    names = {int(getattr(_signal, "SIG" + name)): name for name in PASSED_ON}

    def tell(number: int, frame: "FrameType | None") -> None:
        try:
            os.write(fd, names[number].encode() + b"\n")
        except OSError:
            pass

    fd = sock.fileno()
    for number in names:
        _signal.signal(number, tell)
    said = b""
    while not said.endswith(b"\n"):
        try:
            part = sock.recv(64)
        except OSError:  # it died before it had read a signal of ours
            return LOST
        if not part:
            return LOST
        said += part
    return status_of(said)


def status_of(said: bytes) -> int:
    """Read the line that a supervisor ends its anchor with; what is none is the end as well."""
    return int(said) if said[:-1].isdigit() and len(said) <= 4 else LOST


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
