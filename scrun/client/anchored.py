"""What `create`, `run` and `exec` give the supervisor: descriptors, and the end of an anchor."""

import _socket
import os

from scrun.anchor.pid_file import PidFile
from scrun.anchor.shell import AnchorProcess
from scrun.cli.parse import Parsed
from scrun.client.console import Console

TYPE_CHECKING = False
if TYPE_CHECKING:
    from scrun.anchor.foreground import CarriedTerminal


class Anchored:
    """One call's pid file, terminal and anchor.

    Used with `with`, which removes a pid file that was not published.

    Attributes:
        pid_file: That of `--pid-file`, if it is given.
        console: The terminal for `--console-socket`, likewise.
        left: The anchor that is left behind; None: it is this process itself.
        socket: The anchor's end of its socket, for this process.
        fds: Standard input, output and error, and the supervisor's end of that socket.
    """

    __slots__ = ("_ours", "_socket_path", "console", "fds", "left", "pid_file", "socket")

    def __init__(self, parsed: Parsed) -> None:
        """Make the pid file.

        Raises:
            OSError: Something is wrong at its place.
        """
        _open_closed_descriptors()
        path = parsed.text("pid-file")
        self._socket_path = parsed.text("console-socket")
        self.pid_file = PidFile(path) if path else None

    def __enter__(self) -> "Anchored":  # noqa: PYI034 - typing is not imported here
        return self

    def __exit__(self, *error: object) -> None:
        if self.pid_file:
            self.pid_file.discard()

    def begin(self, carried: "CarriedTerminal | None" = None, *, leave: bool) -> None:
        """Make the terminal and begin to make the anchor.

        Args:
            carried: A terminal of this process for the container.
            leave: Leave an anchor behind.

        Raises:
            OSError: The console socket is at fault.
        """
        self.console = Console(self._socket_path) if self._socket_path else None
        stdio = [carried.slave] * 3 if carried else [0, 1, 2]
        if self.console:
            stdio = self.console.stdio
        self._ours, self.socket = _socket.socketpair()
        self.fds = [*stdio, self._ours.fileno()]
        self.left = None
        if leave:
            lock = self.pid_file.lock if self.pid_file else None
            terminal = self.console.path if self.console else None
            self.left = AnchorProcess(self.socket.detach(), lock, terminal)

    def name(self) -> int:
        """Return the anchor's pid, and write it to the pid file.

        Raises:
            OSError: There is no anchor, or the pid file's file system is full.
        """
        pid = self.left.pid if self.left else os.getpid()
        if self.pid_file:
            self.pid_file.names(pid, self.left)
        return pid

    def sent(self) -> None:
        """Close what the supervisor has now."""
        self._ours.close()


def _open_closed_descriptors() -> None:
    """Put /dev/null where standard input, output or error were closed.

    Else the next file that is opened takes that number, and a socket of ours would be handed to
    the container as its standard input.
    """
    while (fd := os.open("/dev/null", os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
