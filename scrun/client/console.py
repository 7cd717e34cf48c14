"""The terminal of a container, which goes to the engine over `--console-socket`."""

import posix

from scrun.core.rights import send_fds
from scrun.protocol import wire

_TAKING = 10
"""Seconds in which the engine has to accept the connection to its console socket."""


class Console:
    """A terminal for the engine (runtime-spec, runc's terminals.md).

    Attributes:
        stdio: Its slave, as standard input, output and error.
        path: The slave's path.
    """

    __slots__ = ("_master", "_socket", "path", "stdio")

    def __init__(self, socket: str) -> None:
        """Open a terminal.

        Args:
            socket: The value of `--console-socket`.

        Raises:
            OSError: That is not a socket, or belongs to another user.
        """
        self._socket = socket
        try:
            status = posix.stat(socket)
            if status.st_mode & 0o170000 != 0o140000:
                raise OSError(22, "is not a socket")
            if status.st_uid not in (0, posix.geteuid()):
                raise PermissionError(1, f"belongs to another user (uid {status.st_uid})")
        except OSError as error:
            raise self._named(error) from None
        self._master, slave = posix.openpty()
        self.stdio = [slave, slave, slave]
        self.path = posix.ttyname(slave)

    def hand_over(self) -> None:
        """Send the master to the engine, and close it here.

        Raises:
            OSError: Nobody accepts it, or another user listens there.
        """
        directory, slash, name = self._socket.rpartition("/")
        try:
            sock = wire.connect(directory + slash or ".", name, patience=_TAKING)
            try:
                if wire.peer_uid(sock) != 0:  # root may get everybody's terminal
                    wire.check_peer(sock)
                send_fds(sock, self.path.encode(), [self._master])
            finally:
                sock.close()
        except OSError as error:
            raise self._named(error) from None
        posix.close(self._master)

    def _named(self, error: OSError) -> OSError:
        return OSError(error.errno, error.strerror, f"--console-socket {self._socket}")
