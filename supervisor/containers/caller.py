"""The `create` that waits for its container: told meanwhile what happens, and asked to help.

Its own standard error and `--log` are its own to write: they may block, and they are somebody
else's. So the messages go over its connection, before the answer: see
`scrun.protocol.progress` for their form.
"""

import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from scrun.core.errors import StateError
from scrun.core.text import printable
from scrun.protocol.progress import CALL, LIVE, TO_LOG, TO_STDERR
from scrun.settings.file.load import LEVELS, Level
from scrun.supervisor.contracts.create_request import read_pid
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.log.journal import Journal, Shown, as_runc

_PATIENCE = 5.0
_WAITING = 256
_LONGEST_LINE = 4000
_LONGEST = 16384
_NAMED = ("fatal", "error", "debug", "debug2", "debug3", "debug4", "debug5")


class Caller:
    """A `create` that waits for its answer.

    Attributes:
        named: Set when it has said which process the container's anchor is.
        anchor: The pid of that; 0 before.
        gone: Set when it has hung up.
    """

    def __init__(self, connection: trio.socket.SocketType, said: bytes = b"") -> None:
        """Take its connection, which somebody else closes.

        Args:
            connection: It.
            said: What was read there after the request.
        """
        self.named = trio.Event()
        self.anchor = 0
        self.gone = trio.Event()
        self._connection = connection
        self._said = said
        self._sending = trio.Lock()
        self._statuses, self._ended = trio.open_memory_channel[int](1)
        self._locks: list[int] = []

    async def send(self, data: bytes) -> None:
        """Send it a message, whole.

        Raises:
            OSError: It is gone.
        """
        async with self._sending:
            await send(self._connection, data)

    async def call(self, command: Sequence[str]) -> int:
        """Have it carry out a command, once (see `scrun.client.call`).

        A cancellation waits for the command's end for some seconds: it can be undone then.

        Returns:
            The exit status, or the negative number of the signal that ended it.

        Raises:
            OSError: It is gone.
            StateError: It is gone, and with it the command.
        """
        words = b"\0".join(map(os.fsencode, command))
        await self.send(CALL + b"%d\0" % len(words) + words)
        try:
            return await self._ended.receive()
        except trio.Cancelled:
            with (
                trio.move_on_after(_PATIENCE, shield=True),
                contextlib.suppress(trio.EndOfChannel),
            ):
                await self._ended.receive()
            raise
        except trio.EndOfChannel:
            raise StateError("the caller is gone") from None

    async def listen(self) -> None:
        """Hear what it says, until it hangs up."""
        part = self._said
        said = b""
        try:
            while True:
                *lines, said = (said + part).split(b"\n")
                for line in lines:
                    self._take(line)
                if not (part := await self._receive()):
                    break
        except (OSError, ValueError, trio.WouldBlock):
            pass  # it is gone, or no caller of ours
        self._statuses.close()
        self.gone.set()

    def _take(self, line: bytes) -> None:
        """Take in a line: the anchor's pid is the first, and then come exit statuses.

        Raises:
            ValueError: It is neither.
            trio.WouldBlock: It was not asked for.
        """
        if self.named.is_set():
            self._statuses.send_nowait(int(line))
        else:
            self.anchor = read_pid(line)
            self.named.set()

    async def _receive(self) -> bytes:
        space = socket.CMSG_SPACE(4)
        part, ancillary, *_ = await self._connection.recvmsg(64, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._locks += struct.unpack("i", content[:4])
        return part

    def release(self) -> None:
        """Let go of the lock of its pid file, which came with the command's status."""
        while self._locks:
            os.close(self._locks.pop())


async def hang_up(connection: trio.socket.SocketType) -> None:
    """Let the other side read its answer to the end.

    What it has said meanwhile must be read: else the end would be an error there (ECONNRESET).
    """
    with trio.move_on_after(_PATIENCE), contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        while await connection.recv(65536):
            pass


async def send(connection: trio.socket.SocketType, answer: bytes) -> None:
    """Send all of an answer.

    Raises:
        OSError: The other side is gone.
    """
    with memoryview(answer) as rest:
        sent = 0
        while sent < len(rest):
            sent += await connection.send(rest[sent:])


@asynccontextmanager
async def told(journal: Journal, send: Callable[[bytes], Awaitable[None]]) -> AsyncIterator[None]:
    """Send the caller what it asked for, as long as the block lasts.

    When it is left, what was said in it has been sent. One that does not read misses what does
    not fit in the queue, and one that is gone misses everything.

    Args:
        journal: Where the messages come from.
        send: Sends bytes to the caller.
    """
    shown = journal.shown
    if shown.stderr == shown.log == "quiet" and not shown.live:
        yield
        return
    sender, receiver = trio.open_memory_channel[bytes](_WAITING)

    async def pump() -> None:
        async with receiver:
            async for piece in receiver:
                await send(piece)

    async def pump_until_gone() -> None:
        try:
            await pump()
        except OSError:
            pass  # whoever answers it will notice, too

    def tell(level: Level, text: str) -> None:
        if piece := frames(level, text, shown):
            try:
                sender.send_nowait(piece)
            except (trio.WouldBlock, trio.BrokenResourceError):
                pass  # it is in the log

    def tell_live(text: str) -> None:
        try:
            sender.send_nowait(_frame(LIVE, printable(text)[:_LONGEST_LINE]))
        except (trio.WouldBlock, trio.BrokenResourceError):
            pass  # it would have been replaced anyway

    journal.show_to(tell)
    if shown.live:
        journal.show_live(tell_live)
    async with unwrapped() as nursery:
        nursery.start_soon(pump_until_gone)
        try:
            yield
        finally:
            journal.show_to(None)
            journal.show_live(None)
            sender.close()


def frames(level: Level, text: str, shown: Shown) -> bytes:
    """Write a message for the wire, once for each place that it is for."""
    number = LEVELS.index(level)
    result = b""
    if number <= LEVELS.index(shown.log):
        result += _frame(TO_LOG, f"{as_runc(level)} {text[:_LONGEST]}")
    if number <= LEVELS.index(shown.stderr):
        for line in stderr_lines(level, text[:_LONGEST]):
            result += _frame(TO_STDERR, line + "\n")
    return result


def stderr_lines(level: Level, text: str) -> list[str]:
    """Write a message for people, as Slurm's commands do: `scrun: debug: …`."""
    kind = f"{level}: " if level in _NAMED else ""
    return [
        f"scrun: {kind}{printable(line)[:_LONGEST_LINE]}" for line in text.splitlines() or [""]
    ]


def _frame(mark: bytes, text: str) -> bytes:
    return mark + text.replace("\0", "\\0").encode(errors="backslashreplace") + b"\0"
