"""A supervisor's end of the line to its keeper (`supervisor.keeper`)."""

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from scrun.core.rights import send_fds


class KeeperLine:
    """A socket, and a pipe that wakes the keeper. The end of both calls a successor."""

    def __init__(self, fds: Sequence[int]) -> None:
        """Duplicate the socket, and the pipe if the keeper may sleep.

        Raises:
            OSError: We are out of descriptors.
        """
        self.sock = socket.socket(fileno=os.dup(fds[0]))
        try:
            self._wake = [os.dup(fd) for fd in fds[1:2]]
        except BaseException:
            self.sock.close()
            raise
        for fd in self._wake:
            os.set_blocking(fd, False)

    def __enter__(self) -> Self:
        """Keep it while the block runs."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.sock.close()
        while self._wake:
            os.close(self._wake.pop())

    @property
    def fds(self) -> list[int]:
        """The socket, and the pipe."""
        return [self.sock.fileno(), *self._wake]

    def send(self, message: bytes, fds: Sequence[int] = (), flags: int = 0) -> None:
        """Send the keeper a message.

        Raises:
            OSError: It is too long, or there is no room for it; or the keeper is gone.
        """
        send_fds(self.sock, message, [*fds], flags)
        for fd in self._wake:
            with suppress(BlockingIOError):  # it has enough to be woken by
                os.write(fd, b"\n")
