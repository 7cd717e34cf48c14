"""The streams of a container or an exec, between the caller's descriptors and the shim.

A stream may have `frames.WINDOW` bytes on their way, and credit for more comes only for bytes that
were written onwards. So memory is bounded, and a reader that stops stops the container's writer.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Self

import trio

from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.nodes.ends import Gone, Sink, Source, is_null, sink, source
from scrun.supervisor.nodes.link import Broken, Link, buffer
from scrun.supervisor.nodes.terminal import raw, size
from scrun.supervisor.shim.frames import (
    CLOSED,
    CREDIT,
    CREDIT_BYTES,
    DATA,
    END,
    HEADER,
    PIECE,
    WINDOW,
    BrokenFrame,
    frame,
)

NAMES = ("stdin", "stdout", "stderr")
_CREDIT_AT = WINDOW // 4


class StreamTable:
    """All streams of a shim, by their numbers.

    Attributes:
        link: The connection over which they go.
    """

    def __init__(self, link: Link) -> None:
        """Begin without streams."""
        self.link = link
        self.outgoing: dict[int, Outgoing] = {}
        self.incoming: dict[int, Incoming] = {}
        self.is_over = False
        self._last = 0

    def number(self) -> int:
        """Return a number for a stream."""
        self._last += 1
        return self._last

    def begin(self, fields: object) -> None:
        """Begin to send: the shim knows these streams (`ContainerStreams.fields`) now."""
        if isinstance(fields, Mapping):
            for name in ("stdin", "terminal"):
                if (number := fields.get(name)) in self.outgoing:
                    self.outgoing[number].begun.set()

    def dispatch(self, kind: int, number: int, payload: memoryview) -> None:
        """Take a frame. One of a stream that has ended for us is dropped.

        Raises:
            BrokenFrame: It is none of a stream's, or disobeys the window.
        """
        if kind == DATA:
            if number in self.incoming:
                self.incoming[number].take(payload)
        elif kind == END:
            if number in self.incoming:
                self.incoming[number].end()
        elif kind == CREDIT:
            if len(payload) != CREDIT_BYTES.size:
                raise BrokenFrame("a credit without a number")
            if number in self.outgoing:
                self.outgoing[number].credit(CREDIT_BYTES.unpack(payload)[0])
        elif kind == CLOSED:
            if number in self.outgoing:
                self.outgoing[number].close()
        else:
            raise BrokenFrame(f"a frame of kind {kind} is in the wrong place")

    def over(self) -> None:
        """End all streams: no frame will come any more."""
        self.is_over = True
        for incoming in self.incoming.values():
            incoming.end()
        for outgoing in self.outgoing.values():
            outgoing.close()


class Outgoing:
    """A stream to the container."""

    def __init__(self, table: StreamTable, number: int) -> None:
        """Create it.

        Args:
            table: Where it belongs.
            number: Its number.
        """
        self.begun = trio.Event()
        self._table = table
        self._number = number
        self._allowed = WINDOW
        self._more = trio.Event()
        self._scope = trio.CancelScope()

    def credit(self, count: int) -> None:
        """Allow more bytes."""
        self._allowed += count
        self._more.set()

    def close(self) -> None:
        """Stop reading: nobody takes it any more."""
        self._scope.cancel()

    async def pump(self, opened: AbstractAsyncContextManager[Source]) -> None:
        """Send what is read until its end.

        Args:
            opened: The source; closed as soon as it is not needed.
        """
        table, number = self._table, self._number
        table.outgoing[number] = self
        try:
            with self._scope:
                await self.begun.wait()
                try:
                    async with opened as found:
                        await self._send_all(found)
                finally:
                    table.link.put(frame(END, number))
        except Broken:
            pass  # the shim has gone, which others tell
        finally:
            del table.outgoing[number]

    async def _send_all(self, found: Source) -> None:
        room = buffer(HEADER.size + PIECE)
        while True:
            while self._allowed <= 0:
                self._more = trio.Event()
                await self._more.wait()
            most = min(PIECE, self._allowed)
            count = await found.read_into(room[HEADER.size : HEADER.size + most])
            if not count:
                return
            self._allowed -= count
            HEADER.pack_into(room, 0, DATA, self._number, count)
            await self._table.link.send(room[: HEADER.size + count])


class Incoming:
    """A stream from the container.

    Attributes:
        number: Its number.
        over: Set when all of it has been written, or its reader has gone.
    """

    def __init__(
        self, table: StreamTable, number: int, name: str, failed: Callable[[str], None]
    ) -> None:
        """Create it.

        Args:
            table: Where it belongs.
            number: Its number.
            name: Its name for people.
            failed: Called with the reason if it cannot be written, other than by its reader's end.
        """
        self.number = number
        self.over = trio.Event()
        self._table = table
        self._name = name
        self._failed = failed
        self._sink: Sink | None = None
        self._waiting: deque[memoryview] = deque()  # for a sink that is full
        self._window = WINDOW
        self._written = 0  # and no credit sent for it yet
        self._ended = False
        self._gone = False
        self._changed = trio.Event()

    @property
    def full(self) -> bool:
        """Whether its reader makes it wait."""
        return bool(self._waiting)

    def take(self, data: memoryview) -> None:
        """Write data, or keep a copy.

        Raises:
            BrokenFrame: It is more than was allowed.
        """
        if self._ended or self._gone:
            return
        self._window -= len(data)
        if self._window < 0:
            raise BrokenFrame(f"more than {WINDOW} bytes of a stream")
        if self._sink is not None and not self._waiting:
            try:
                count = self._sink.try_write(data)
            except Gone as error:
                self._lose_reader(error)
                return
            self._count(count)
            data = data[count:]
        if data:
            self._waiting.append(memoryview(bytes(data)))
            self._tell()

    def end(self) -> None:
        """Take the end of file."""
        self._ended = True
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _count(self, written: int) -> None:
        self._written += written
        if self._written >= _CREDIT_AT:
            self._window += self._written
            count, self._written = self._written, 0
            self._table.link.put(frame(CREDIT, self.number, CREDIT_BYTES.pack(count)))

    def _lose_reader(self, error: Gone) -> None:
        self._gone = True
        self._waiting.clear()
        self._table.link.put(frame(CLOSED, self.number))
        if str(error):
            self._failed(f"{self._name}: {error}")
        self._tell()

    async def pump(self, opened: AbstractAsyncContextManager[Sink]) -> None:
        """Write what comes until its end.

        Args:
            opened: The sink; closed as soon as it is not needed.
        """
        table = self._table
        try:
            async with opened as self._sink:
                await self._write_all(self._sink)
                self._sink = None
        finally:
            table.incoming.pop(self.number, None)
            if not self._ended and not self._gone:
                table.link.put(frame(CLOSED, self.number))
        self.over.set()
        self._tell()

    async def _write_all(self, found: Sink) -> None:
        while True:
            while self._waiting:
                data = self._waiting[0]
                try:
                    count = await found.write(data)
                except Gone as error:
                    self._lose_reader(error)
                    break
                self._count(count)
                if count < len(data):
                    self._waiting[0] = data[count:]
                else:
                    self._waiting.popleft()
                    if not self._waiting:
                        self._tell()
            if self._ended or self._gone:
                return
            if not self._waiting:
                await self._changed.wait()

    async def finished(self, patience: float) -> None:
        """Wait until it is over, `patience` seconds besides those in which its reader is slow."""
        while not self.over.is_set() and patience > 0:
            begun, slow, changed = trio.current_time(), self.full or self._ended, self._changed
            with trio.move_on_after(float("inf") if slow else patience):
                await changed.wait()
            if not slow:
                patience -= trio.current_time() - begun


class ContainerStreams:
    """The streams of a container or an exec. They are carried while the block runs.

    Attributes:
        fields: `streams` of `create` and `exec`, see `supervisor.shim`.
    """

    def __init__(
        self,
        table: StreamTable,
        stdio: tuple[int, int, int],
        terminal: bool,
        child_env: ChildEnv,
        journal: Journal,
        tell: Callable[..., None],
    ) -> None:
        """See `Shim.streams`."""
        self.fields: dict[str, int] = {}
        self._table = table
        self._stdio = stdio
        self._terminal = stdio[0] if terminal else None
        self._child_env = child_env
        self._journal = journal
        self._tell_shim = tell
        self._incoming: list[Incoming] = []
        self._running: AbstractAsyncContextManager[None] | None = None
        if terminal:
            self.fields = {"terminal": table.number(), **self.resized_fields()}
        else:
            for name, fd in zip(NAMES, stdio, strict=True):
                if not is_null(fd):
                    self.fields[name] = table.number()

    def resized_fields(self) -> dict[str, int]:
        """Return the size of the caller's terminal, as fields of `resize`."""
        if self._terminal is None:
            return {}
        rows, columns = size(self._terminal)
        return {"rows": rows, "columns": columns}

    def resized(self, target: str) -> None:
        """Tell the shim the size of the caller's terminal, which has changed."""
        self._tell_shim("resize", id=target, **self.resized_fields())

    async def finished(self, patience: float) -> None:
        """Wait until all output has arrived and is written.

        Args:
            patience: How long to wait, in seconds, for streams that a process that is left keeps
                open. Time in which the caller's reader is slow does not count.
        """
        async with unwrapped() as nursery:
            for incoming in self._incoming:
                nursery.start_soon(incoming.finished, patience)

    async def __aenter__(self) -> Self:
        self._running = self._carried()
        await self._running.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._running is not None
        return await self._running.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _carried(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if self._terminal is not None:
                stack.enter_context(raw(self._terminal))
            nursery = await stack.enter_async_context(unwrapped())
            for name in (*NAMES, "terminal"):
                if name in self.fields:
                    self._begin(nursery, name, self.fields[name])
            try:
                yield
            finally:
                nursery.cancel_scope.cancel()

    def _begin(self, nursery: trio.Nursery, name: str, number: int) -> None:
        fd = self._stdio[NAMES.index(name)] if name in NAMES else self._stdio[0]
        table = self._table
        if name in ("stdin", "terminal"):
            outgoing = table.outgoing[number] = Outgoing(table, number)
            nursery.start_soon(outgoing.pump, source(fd, self._child_env))
        if name != "stdin":
            incoming = table.incoming[number] = Incoming(table, number, name, self._failed)
            self._incoming.append(incoming)
            nursery.start_soon(incoming.pump, sink(fd, self._child_env))
        if table.is_over:
            table.over()

    def _failed(self, reason: str) -> None:
        self._journal.write("error", reason)
