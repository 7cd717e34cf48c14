"""The `create` that waits for its container: it gets progress messages, and runs commands for us.

Only `create` itself writes to its standard error and `--log`: they may block, and others share
them. So the messages go over its connection, before the answer, in the form of
`scrun.protocol.wire`.
"""

import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from scrun.core.errors import StateError
from scrun.core.rights import fds_in
from scrun.core.text import printable
from scrun.protocol.wire import CALL, LIVE, TO_LOG, TO_STDERR, peer_pid
from scrun.settings.file.load import LEVELS, Level
from scrun.supervisor.contracts.create_request import read_pid
from scrun.supervisor.core.mounts import OURS, MountNamespace
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.ownership import release
from scrun.supervisor.log.journal import Journal, Shown, as_runc

_PATIENCE = 5.0
_WAITING = 256
_LONGEST_LINE = 4000
_LONGEST = 16384
_NAMED = ("fatal", "error", "debug", "debug2", "debug3", "debug4", "debug5")


class Caller:
    """A `create` that waits for its answer, or has ended long ago.

    Attributes:
        anchor_known: Set when it has sent the pid of the container's anchor.
        anchor: That pid; 0 before.
        gone: Set when it has hung up.
        mounts: What it sees; its container's from the beginning of that on.
    """

    def __init__(
        self,
        connection: trio.socket.SocketType | None,
        unread: bytes = b"",
        mounts: MountNamespace = OURS,
    ) -> None:
        """`connection`: None: it has ended."""
        self.mounts = mounts
        self.anchor_known = trio.Event()
        self.anchor = 0
        self.gone = trio.Event()
        self._connection = connection
        self._unread = unread
        self._sending = trio.Lock()
        self._statuses, self._ended = trio.open_memory_channel[int](1)
        self._locks: list[int] = []

    @classmethod
    def that_has_ended(cls, anchor: int, lock: int | None, mounts: MountNamespace) -> "Caller":
        """`lock`: the descriptor that holds the lock of its pid file, if we have to release it."""
        caller = cls(None, mounts=mounts)
        caller.anchor = anchor
        caller.anchor_known.set()
        caller.gone.set()
        caller._locks += [] if lock is None else [lock]
        return caller

    async def send(self, data: bytes) -> None:
        """Send a whole message.

        Raises:
            OSError: The caller is gone.
        """
        assert self._connection is not None
        async with self._sending:
            await send(self._connection, data)

    async def call(self, command: Sequence[str]) -> int:
        """Ask the caller to run a command (see `scrun.client.submit`).

        When cancelled, waits some seconds for the command to end, so that its effects can be
        undone.

        Returns:
            The exit status, or the negative number of the signal that killed the command.

        Raises:
            OSError: The caller is gone.
            StateError: The caller went away, and its command with it.
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
        part = self._unread
        rest = b""
        try:
            while True:
                *lines, rest = (rest + part).split(b"\n")
                if len(rest) > _LONGEST_LINE:
                    break
                for line in lines:
                    self._take(line)
                if not (part := await self._receive()):
                    break
        except (OSError, ValueError, trio.WouldBlock):
            pass  # it is gone, or not a caller of ours
        self._statuses.close()
        self.gone.set()

    def _take(self, line: bytes) -> None:
        """Read a line: first the anchor's pid, then the exit status of each command.

        Raises:
            ValueError: The line is neither.
            trio.WouldBlock: No command was requested.
        """
        if self.anchor_known.is_set():
            self._statuses.send_nowait(int(line))
        else:
            self.anchor = read_pid(line)
            self.anchor_known.set()

    async def _receive(self) -> bytes:
        assert self._connection is not None
        space = socket.CMSG_LEN(4)  # CMSG_SPACE has room for a second one, which nobody would own
        part, ancillary, *_ = await self._connection.recvmsg(64, space, socket.MSG_CMSG_CLOEXEC)
        self._locks += fds_in(ancillary)
        return part

    @property
    def pid(self) -> int:
        """Its pid; 0 if it has ended, or is in a PID namespace that we do not see."""
        return 0 if self._connection is None else peer_pid(self._connection)

    @property
    def lock(self) -> int | None:
        """The descriptor that holds the lock of its pid file, if we have that."""
        return self._locks[-1] if self._locks else None

    def release(self) -> None:
        """Release the lock of its pid file, which came with a command's status."""
        while self._locks:
            release(self._locks.pop())


async def hang_up(connection: trio.socket.SocketType) -> None:
    """Shut down a connection after the peer has read all of its answer.

    Reads what the peer sends meanwhile: otherwise it would get ECONNRESET instead of the end.
    """
    with trio.move_on_after(_PATIENCE), contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        while await connection.recv(65536):
            pass


async def send(connection: trio.socket.SocketType, answer: bytes) -> None:
    """Send all of an answer.

    Raises:
        OSError: The peer is gone.
    """
    with memoryview(answer) as rest:
        sent = 0
        while sent < len(rest):
            sent += await connection.send(rest[sent:])


async def send_last(connection: trio.socket.SocketType, answer: bytes) -> None:
    """Send an answer, which ends what is sent: a caller reads to the end.

    At once if that is possible, not when it is our turn again.

    Raises:
        OSError: The peer is gone.
    """
    sent = 0
    with contextlib.suppress(BlockingIOError):
        sent = os.write(connection.fileno(), answer)
    if sent < len(answer):
        await send(connection, answer[sent:])
    connection.shutdown(socket.SHUT_WR)


@asynccontextmanager
async def send_progress(
    journal: Journal, send: Callable[[bytes], Awaitable[None]]
) -> AsyncIterator[None]:
    """Send the caller the messages that it wants, while the block runs.

    On exit, all messages written in the block have been sent. A caller that does not read misses
    those that do not fit into the queue; one that is gone misses them all.
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
            pass  # whoever sends the answer will notice it, too

    def write(level: Level, text: str) -> None:
        if piece := frames(level, text, shown):
            try:
                sender.send_nowait(piece)
            except (trio.WouldBlock, trio.BrokenResourceError):
                pass  # it is in the log

    def write_live(text: str) -> None:
        try:
            sender.send_nowait(_frame(LIVE, printable(text)[:_LONGEST_LINE]))
        except (trio.WouldBlock, trio.BrokenResourceError):
            pass  # it would have been replaced anyway

    journal.show_to(write)
    if shown.live:
        journal.show_live(write_live)
    async with unwrapped() as nursery:
        nursery.start_soon(pump_until_gone)
        try:
            yield
        finally:
            journal.show_to(None)
            journal.show_live(None)
            sender.close()


def frames(level: Level, text: str, shown: Shown) -> bytes:
    """Encode a message for the wire, once for each of its destinations."""
    number = LEVELS.index(level)
    result = b""
    if number <= LEVELS.index(shown.log):
        result += _frame(TO_LOG, f"{as_runc(level)} {text[:_LONGEST]}")
    if number <= LEVELS.index(shown.stderr):
        for line in stderr_lines(level, text[:_LONGEST]):
            result += _frame(TO_STDERR, line + "\n")
    return result


def stderr_lines(level: Level, text: str) -> list[str]:
    """Format a message for people, as Slurm's commands do: `scrun: debug: …`."""
    kind = f"{level}: " if level in _NAMED else ""
    return [
        f"scrun: {kind}{printable(line)[:_LONGEST_LINE]}" for line in text.splitlines() or [""]
    ]


def _frame(mark: bytes, text: str) -> bytes:
    return mark + text.replace("\0", "\\0").encode(errors="backslashreplace") + b"\0"
