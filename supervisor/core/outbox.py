"""What a keeper is told, in order: what its socket has no room for waits here.

The event loop does not wait for a keeper, which may still be on its way or have been stopped.
"""

import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import trio

from scrun.supervisor.core.inheritance import close_all
from scrun.supervisor.core.line import KeeperLine
from scrun.supervisor.keeper.main import END, LONGEST

_MOST = 10_000


class Outbox:
    """The way to one keeper.

    Attributes:
        line: The line to it; the caller's.
        lost: Set when the keeper takes nothing more.
    """

    def __init__(self, line: KeeperLine, changed: Callable[[], None]) -> None:
        """Begin.

        Args:
            line: The line to the keeper.
            changed: Called when something waits, and when nothing does any more.
        """
        self.line = line
        self.lost = trio.Event()
        self._changed = changed
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        self._waits = trio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether the keeper has everything."""
        return not self._waiting

    def put(self, message: bytes, fds: list[int]) -> None:
        """Tell the keeper, now or when it has room.

        Args:
            message: What.
            fds: Descriptors; they stay the caller's.

        Raises:
            OSError: The message is too long.
        """
        if self.lost.is_set():
            return
        try:
            if self._waiting or not self._send(message, fds):
                self._wait_with(message, fds)
        except OSError as error:
            if error.errno == errno.EMSGSIZE:
                raise
            self._lose()

    def _send(self, message: bytes, fds: list[int]) -> bool:
        """Send a message if there is room; return whether there was."""
        try:
            self.line.send(message, fds, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return True

    def _wait_with(self, message: bytes, fds: list[int]) -> None:
        """Have a message wait, with descriptors of its own.

        Raises:
            OSError: We are out of descriptors; or it is too long, or many wait.
        """
        if len(message) > LONGEST:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        if len(self._waiting) >= _MOST:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        own: list[int] = []
        try:
            for fd in fds:
                own.append(os.dup(fd))  # noqa: PERF401 - those before are closed
        except OSError:
            close_all(own)
            raise
        self._waiting.append((message, own))
        if len(self._waiting) == 1:
            self._waits.set()
            self._changed()

    async def deliver(self, patience: float) -> None:
        """Send what waits, whenever there is room, until the keeper is lost.

        Args:
            patience: After how many seconds without room it is.
        """
        while True:
            await self._waits.wait()
            if self.lost.is_set():
                return
            with trio.move_on_after(patience):
                await self.room()
                self._send_waiting()
                continue
            self._lose()

    def _send_waiting(self) -> None:
        try:
            while self._waiting and self._send(*self._waiting[0]):
                close_all(self._waiting.popleft()[1])
        except OSError:
            self._lose()
        if not self._waiting and not self.lost.is_set():
            self._waits = trio.Event()
            self._changed()

    def _lose(self) -> None:
        self.lost.set()
        self._waits.set()

    async def room(self) -> None:
        """Wait until the keeper has taken most of what it was sent."""
        with suppress(trio.ClosedResourceError):
            await trio.lowlevel.wait_writable(self.line.sock)

    def dismiss(self, patience: float) -> None:
        """Have the keeper end without a successor; see `Deposits.dismiss`."""
        with suppress(OSError):
            self.line.sock.settimeout(patience)
            self.line.send(END)

    def close(self) -> None:
        """Say nothing more; the line is closed by its owner."""
        self._lose()
        trio.lowlevel.notify_closing(self.line.sock)
        while self._waiting:
            close_all(self._waiting.popleft()[1])
