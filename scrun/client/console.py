"""The terminal of a container that an engine asks for."""

import _socket
import os

from scrun.protocol import wire

_TAKING = 10
"""Seconds that whoever listens at the console socket may take."""


class Console:
    """A terminal that is to be handed to the engine (runtime-spec, runc's terminals.md).

    Attributes:
        stdio: Its slave as standard input, output and error.
        path: The slave's path.
    """

    __slots__ = ("_master", "_socket", "path", "stdio")

    def __init__(self, socket: str) -> None:
        """Make it.

        Args:
            socket: What `--console-socket` says.

        Raises:
            OSError: It is no socket, or another user's.
        """
        self._socket = socket
        try:
            status = os.stat(socket)
            if status.st_mode & 0o170000 != 0o140000:
                raise OSError(22, "is not a socket")
            if status.st_uid not in (0, os.geteuid()):
                raise PermissionError(1, f"belongs to another user (uid {status.st_uid})")
        except OSError as error:
            raise self._named(error) from None
        self._master, slave = os.openpty()
        self.stdio = [slave, slave, slave]
        self.path = os.ttyname(slave)

    def hand_over(self) -> None:
        """Send the master to the engine, which is the only one that has it then.

        Raises:
            OSError: Nobody takes it, or another user would.
        """
        directory, name = os.path.split(self._socket)
        try:
            sock = wire.connect(directory or ".", name, patience=_TAKING)
            try:
                if wire.served_by(sock) != 0:  # root may take everybody's
                    wire.check_server(sock)
                rights = self._master.to_bytes(4, "little")
                ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)]
                sock.sendmsg([self.path.encode()], ancillary)
            finally:
                sock.close()
        except OSError as error:
            raise self._named(error) from None
        os.close(self._master)

    def _named(self, error: OSError) -> OSError:
        return OSError(error.errno, error.strerror, f"--console-socket {self._socket}")
