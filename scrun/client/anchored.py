"""What `create`, `run` and `exec` send: descriptors, and the supervisor's end of an anchor."""

import _socket
import posix

from scrun.anchor.pid_file import PidFile
from scrun.anchor.shell import AnchorProcess
from scrun.cli.parse import Parsed
from scrun.client.console import Console

TYPE_CHECKING = False
if TYPE_CHECKING:
    from scrun.anchor.foreground import CarriedTerminal


class Anchored:
    """The pid file, terminal and anchor of one command.

    A context manager, which removes a pid file that was not published.

    Attributes:
        pid_file: The file of `--pid-file`, or None.
        console: The terminal for `--console-socket`, or None.
        anchor: The anchor that is left behind; None if this process is the anchor.
        socket: The anchor's end of its socket, for an anchor that is this process.
        fds: Standard input, output and error, and the supervisor's end of that socket.
    """

    __slots__ = (
        "_socket_path",
        "_supervisor_end",
        "anchor",
        "console",
        "fds",
        "pid_file",
        "socket",
    )

    def __init__(self, parsed: Parsed) -> None:
        """Make the pid file.

        Raises:
            OSError: It cannot be made.
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
        """Open the terminal, and start to make the anchor.

        Args:
            carried: The terminal that this process relays for the container, if any.
            leave: Whether to leave an anchor behind.

        Raises:
            OSError: The console socket cannot be used.
        """
        self.console = Console(self._socket_path) if self._socket_path else None
        stdio = [carried.slave] * 3 if carried else [0, 1, 2]
        if self.console:
            stdio = self.console.stdio
        self._supervisor_end, self.socket = _socket.socketpair()
        self.fds = [*stdio, self._supervisor_end.fileno()]
        self.anchor = None
        if leave:
            lock = self.pid_file.lock if self.pid_file else None
            terminal = self.console.path if self.console else None
            self.anchor = AnchorProcess(self.socket.detach(), lock, terminal)

    def name(self) -> int:
        """Return the anchor's pid, and write it to the pid file.

        Raises:
            OSError: The anchor could not be made, or the pid file's file system is full.
        """
        pid = self.anchor.pid if self.anchor else posix.getpid()
        if self.pid_file:
            self.pid_file.name_anchor(pid, self.anchor)
        return pid

    def sent(self) -> None:
        """Close the descriptor that the supervisor has received."""
        self._supervisor_end.close()


def _open_closed_descriptors() -> None:
    """Open /dev/null for standard input, output or error if it is closed.

    Else the next file that is opened gets that number, and the container would get one of scrun's
    sockets as its standard input.
    """
    while (fd := posix.open("/dev/null", posix.O_RDWR)) <= 2:
        posix.set_inheritable(fd, True)
    posix.close(fd)
