"""The streams of a container or an exec, between the caller's descriptors and the shim.

A stream may have `frames.WINDOW` bytes on their way, and credit for more is given only for bytes
that were written onwards. So memory is bounded, and a reader that stops stops the container's
writer.
"""

import itertools
import os
import termios
import tty
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Self

import trio

from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.program import Ends as Ends
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.nodes.counted import CountedSource
from scrun.supervisor.nodes.ends import Gone, Ready, Sink, Source, is_null, sink, source
from scrun.supervisor.nodes.link import Broken, ShimLink, buffer
from scrun.supervisor.wire.frames import (
    CLOSED,
    CREDIT,
    CREDIT_BYTES,
    DATA,
    END,
    PIECE,
    WINDOW,
    BrokenFrame,
)

NAMES = ("stdin", "stdout", "stderr")
_ALL = (*NAMES, "terminal")
_ROWS, _COLUMNS = 24, 80
_CREDIT_AT = WINDOW // 4
_FIRST = 1024
_FEW = 4096  # bytes, with which most connections do: what more takes costs a system call
_TOGETHER = 1 << 16  # else a program that writes single bytes would take far more memory


class Incoming:
    """A stream from a container or an exec: its output, or what its terminal shows.

    Attributes:
        opened: Set when the caller's descriptor is not needed any more.
        over: Set when all of it has been written, or its reader has gone.
        ended: Whether its end of file has arrived.
        first_errors: The first bytes of a standard error.
        held: Whether arriving bytes are not to be written yet; see `let_go`.
    """

    def __init__(
        self, link: ShimLink, number: int, name: str, failed: Callable[[str], None]
    ) -> None:
        """`failed` gets the reason for a failed write, unless the reader has ended."""
        self.number = number
        self.opened = trio.Event()
        self.over = trio.Event()
        self.first_errors = bytearray()
        self.held = False
        self.link = link
        self._name = name
        self._failed = failed
        self._sink: Sink | None = None
        self._waiting: deque[bytearray] = deque()  # for a sink that is full
        self._window = WINDOW
        self._written = 0  # and no credit sent for it yet
        self.ended = False
        self._gone = False
        self._changed = trio.Event()

    @property
    def full(self) -> bool:
        """Whether its reader makes it wait."""
        return bool(self._waiting) or (self._sink is not None and self._sink.pending)

    def take(self, data: memoryview) -> None:
        """Write data, or keep a copy; raises BrokenFrame if it is more than was allowed."""
        if self._name == "stderr" and len(self.first_errors) < _FIRST:
            self.first_errors += data[:_FIRST]
        if self.ended or self._gone:
            return
        self._window -= len(data)
        if self._window < 0:
            raise BrokenFrame(f"more than {WINDOW} bytes of a stream")
        if self._sink is not None and not (self._waiting or self.held):
            try:
                count = self._sink.try_write(data)
            except Gone as error:
                self._lose_reader(error)
                return
            self._count(count)
            data = data[count:]
            if not data and self._sink.pending:
                self._tell()
        if data:
            self._keep(data)

    def _keep(self, data: memoryview) -> None:
        waiting = self._waiting
        if len(waiting) > 1 and len(waiting[-1]) < _TOGETHER:  # the first one is being written
            waiting[-1] += data
        else:
            waiting.append(bytearray(data))
            if len(waiting) == 1:
                self._tell()

    def let_go(self) -> None:
        """Write the bytes that arrived while it was held."""
        self.held = False
        self._tell()

    def end(self) -> None:
        """Take the end of file."""
        self.ended = True
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _count(self, written: int) -> None:
        self._written += written
        if self._written >= _CREDIT_AT:
            self._window += self._written
            count, self._written = self._written, 0
            self.link.put(CREDIT, self.number, CREDIT_BYTES.pack(count))

    def _lose_reader(self, error: Gone) -> None:
        self._gone = True
        self._waiting.clear()
        self.link.put(CLOSED, self.number)
        if str(error):
            self._failed(f"{self._name}: {error}; the rest of it is lost")
        self._tell()

    async def pump(self, opened: AbstractAsyncContextManager[Sink]) -> None:
        """Write bytes as they arrive until the end; close the sink as soon as it is not needed."""
        try:
            async with opened as self._sink:
                self.opened.set()
                await self._write_all(self._sink)
                self._sink = None
        finally:
            if not self.ended and not self._gone:
                self._gone = True
                self.link.put(CLOSED, self.number)
        self.over.set()
        self._tell()

    async def _write_all(self, found: Sink) -> None:
        try:
            while not self._gone:
                if self.held:
                    await self._changed.wait()
                elif self._waiting:
                    await self._write_first(found)
                elif found.pending:
                    await found.flush()
                elif self.ended:
                    return
                else:
                    await self._changed.wait()
        except Gone as error:
            self._lose_reader(error)

    async def _write_first(self, found: Sink) -> None:
        data = memoryview(self._waiting[0])
        while data:
            count = await found.write(data)
            self._count(count)
            data = data[count:]
        self._waiting.popleft()
        if not self._waiting:
            self._tell()

    async def finished(self, patience: float) -> None:
        """Wait until it is over, `patience` seconds besides those in which its reader is slow."""
        while not self.over.is_set() and patience > 0:
            begun, slow, changed = trio.current_time(), self.full or self.ended, self._changed
            with trio.move_on_after(float("inf") if slow else patience):
                await changed.wait()
            if not slow:
                patience -= trio.current_time() - begun


class Outgoing:
    """A stream to a container or an exec: its standard input, or its terminal's.

    Attributes:
        opened: Set when the caller's descriptor is not needed any more.
        begun: To be set when the shim knows the stream.
    """

    def __init__(self, link: ShimLink, number: int) -> None:
        self.opened = trio.Event()
        self.begun = trio.Event()
        self.link = link
        self._number = number
        self._allowed = WINDOW
        self._taken = 0
        self._more = trio.Event()
        self._scope = trio.CancelScope()

    def credit(self, count: int) -> None:
        """Allow more bytes; raises BrokenFrame if they are more than it may have on their way."""
        if self._allowed + count > WINDOW:
            raise BrokenFrame(f"it takes more than {WINDOW} bytes of a stream")
        self._allowed += count
        self._more.set()

    def begin(self, found: Ready) -> None:
        """Begin to send: what has arrived goes with the call that tells the shim of the stream."""
        if early := found.read_now(_FEW):
            self._allowed -= len(early)
            self.link.put(DATA, self._number, early)
        self.begun.set()

    def resume(self, taken: int, allowed: int) -> None:
        """Go on for a dead supervisor: the shim has `taken` bytes, and takes so many more."""
        self._taken, self._allowed = taken, allowed
        self.begun.set()

    def close(self) -> None:
        """Stop reading: nobody takes it any more."""
        self._scope.cancel()

    async def pump(self, opened: AbstractAsyncContextManager[Source]) -> None:
        """Send what is read until its end; close the source as soon as it is not needed."""
        try:
            with self._scope:
                try:
                    async with opened as found:
                        self.opened.set()
                        await self.begun.wait()
                        if isinstance(found, CountedSource):
                            found.go_to(self._taken)
                        await self._send_all(found)
                finally:
                    self.opened.set()
                    if self.begun.is_set():
                        self.link.put(END, self._number)
        except Broken:
            pass  # the shim has gone, which others tell

    async def _send_all(self, found: Source) -> None:
        room = memoryview(bytearray(_FEW))
        while True:
            while self._allowed <= 0:
                self._more = trio.Event()
                await self._more.wait()
            count = await found.read_into(room[: self._allowed])
            if not count:
                return
            self._allowed -= count
            await self.link.send(DATA, self._number, room[:count])
            if count == _FEW == len(room):
                room = buffer(PIECE)


class StreamTable:
    """All streams of a shim, by their numbers."""

    def __init__(self, link: ShimLink) -> None:
        self.link = link
        self.outgoing: dict[int, Outgoing] = {}
        self.incoming: dict[int, Incoming] = {}
        self.is_over = False
        self._last = 0

    def number(self) -> int:
        self._last += 1
        return self._last

    def use(self, link: ShimLink) -> None:
        """Use another connection from now on, for the streams that there are, too."""
        self.link = link
        for incoming in self.incoming.values():
            incoming.link = link
        for outgoing in self.outgoing.values():
            outgoing.link = link

    def resume(self, inputs: Mapping[str, tuple[int, int]], last: int) -> None:
        """Go on to send where another supervisor was killed, which has no number above `last`.

        By number: how many bytes of a stream the shim has, and how many more it takes. A stream
        that is missing has ended there.
        """
        self._last = last
        for number, outgoing in self.outgoing.items():
            if (found := inputs.get(str(number))) is not None:
                outgoing.resume(*found)
            else:
                outgoing.close()

    def forget(self, number: int) -> None:
        """Forget a stream; frames of it are dropped from now on."""
        self.outgoing.pop(number, None)
        self.incoming.pop(number, None)

    def begin(self, fields: object) -> None:
        """Begin to send: the shim knows these streams (`ContainerStreams.fields`) now."""
        if isinstance(fields, Mapping):
            for name in ("stdin", "terminal"):
                if (number := fields.get(name)) in self.outgoing:
                    self.outgoing[number].begun.set()

    def dispatch(self, kind: int, number: int, payload: memoryview) -> None:
        """Take a frame, or raise BrokenFrame; one of a stream that has ended for us is dropped."""
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
        """End all streams: no frame will arrive any more."""
        self.is_over = True
        for incoming in self.incoming.values():
            incoming.end()
        for outgoing in self.outgoing.values():
            outgoing.close()


class ContainerStreams:
    """The streams of a container or an exec; use `Shim.streams`.

    Attributes:
        fields: `streams` of `create` and `exec`, see `supervisor.shim`.
    """

    def __init__(
        self,
        table: StreamTable,
        stdio: tuple[int, int, int],
        terminal: bool,
        child_env: ChildEnv,
        failed: Callable[[str], None],
        tell: Callable[..., None],
        ends: Ends | None = None,
        fields: Mapping[str, int] | None = None,
    ) -> None:
        """See `Shim.streams`; those with `fields` were begun by another supervisor."""
        self.fields: dict[str, int] = {**(fields or {})}
        self._table = table
        self._stdio = stdio
        self._terminal = stdio[0] if terminal else None
        self._child_env = child_env
        self._failed = failed
        self._tell_shim = tell
        self._ends = ends
        self._is_begun = fields is not None
        self._incoming: list[Incoming] = []
        if self._is_begun:
            return
        if terminal:
            self.fields = {"terminal": table.number(), **self.resized_fields()}
        else:
            for name, fd in zip(NAMES, stdio, strict=True):
                if not is_null(fd):
                    self.fields[name] = table.number()

    @property
    def first_errors(self) -> bytes:
        """The first bytes of standard error: a runtime in the foreground writes there, too."""
        return b"".join(bytes(incoming.first_errors) for incoming in self._incoming)

    def hold(self) -> None:
        """Write nothing until `let_go`."""
        for incoming in self._incoming:
            incoming.held = True

    def let_go(self) -> None:
        """Write everything since `hold`, and from now on."""
        for incoming in self._incoming:
            incoming.let_go()

    def resized_fields(self) -> dict[str, int]:
        """Return the size of the caller's terminal, as fields of `resize`."""
        if self._terminal is None:
            return {}
        rows, columns = size(self._terminal)
        return {"rows": rows, "columns": columns}

    def resized(self, target: str) -> None:
        """Tell the shim the size of the caller's terminal, which has changed."""
        if self._terminal is not None:
            self._tell_shim("resize", id=target, **self.resized_fields())

    async def finished(self, patience: float) -> None:
        """Wait until all output has arrived and is written.

        That is `patience` seconds for streams that a process that is left keeps open, besides
        those in which the caller's reader is slow.
        """
        async with unwrapped() as nursery:
            for incoming in self._incoming:
                nursery.start_soon(incoming.finished, patience)

    @asynccontextmanager
    async def carried(self) -> AsyncIterator[Self]:
        async with AsyncExitStack() as stack:
            if self._terminal is not None:
                self._terminal = terminal = os.dup(self._terminal)
                stack.callback(self._close, terminal)
                if not self._is_begun:  # whose it is restores it then, at the latest
                    stack.enter_context(raw(terminal))
            nursery = await stack.enter_async_context(unwrapped())
            numbers = {name: self.fields[name] for name in self.fields if name in _ALL}
            try:
                opened = [self._begin(nursery, *stream) for stream in numbers.items()]
                for event in itertools.chain(*opened):
                    await event.wait()
                yield self
            finally:
                nursery.cancel_scope.cancel()
                for number in numbers.values():
                    self._table.forget(number)

    def _close(self, terminal: int) -> None:
        self._terminal = None
        os.close(terminal)

    def _begin(self, nursery: trio.Nursery, name: str, number: int) -> list[trio.Event]:
        """Carry a stream from now on; return what tells that its descriptor is not needed."""
        found: list[trio.Event] = []
        fd = self._stdio[NAMES.index(name)] if name in NAMES else self._stdio[0]
        table = self._table
        if name in ("stdin", "terminal"):
            outgoing = table.outgoing[number] = Outgoing(table.link, number)
            own = source(fd, self._child_env) if self._ends is None else self._ends.source()
            nursery.start_soon(outgoing.pump, own)
            found.append(outgoing.opened)
        if name != "stdin":
            incoming = table.incoming[number] = Incoming(table.link, number, name, self._failed)
            self._incoming.append(incoming)
            to = sink(fd, self._child_env) if self._ends is None else self._ends.sink(name)
            nursery.start_soon(incoming.pump, to)
            found.append(incoming.opened)
        if table.is_over:
            table.over()
        return found


def size(terminal: int) -> tuple[int, int]:
    """Return a terminal's rows and columns; the usual ones if it has none."""
    try:
        columns, rows = os.get_terminal_size(terminal)
    except OSError:  # hung up
        columns = rows = 0
    return (rows, columns) if rows or columns else (_ROWS, _COLUMNS)


@contextmanager
def raw(terminal: int) -> Iterator[None]:
    """Make a terminal raw while the block runs.

    The container's terminal on the node does what a terminal does: echo, lines, signals. So the
    caller's does nothing, and every key reaches the container.

    Nothing waits for its output here (TCSADRAIN): that may be stopped.
    """
    try:
        before = termios.tcgetattr(terminal)
        tty.setraw(terminal, termios.TCSANOW)
    except termios.error:  # hung up
        yield
        return
    try:
        yield
    finally:
        try:
            termios.tcsetattr(terminal, termios.TCSANOW, before)
        except termios.error:
            pass  # hung up meanwhile
