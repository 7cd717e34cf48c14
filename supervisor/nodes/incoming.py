"""A stream from a container or an exec: its output, or what its terminal shows."""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import trio

from scrun.supervisor.nodes.ends import Sink
from scrun.supervisor.nodes.files import Gone
from scrun.supervisor.nodes.link import ShimLink
from scrun.supervisor.shim.frames import CLOSED, CREDIT, CREDIT_BYTES, WINDOW, BrokenFrame

_CREDIT_AT = WINDOW // 4
_FIRST = 1024
_TOGETHER = 1 << 16  # else a program that writes single bytes would take far more memory


class Incoming:
    """A stream from the container.

    Attributes:
        opened: Set when the caller's descriptor is not needed any more.
        over: Set when all of it has been written, or its reader has gone.
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
        self._ended = False
        self._gone = False
        self._changed = trio.Event()

    @property
    def full(self) -> bool:
        """Whether its reader makes it wait."""
        return bool(self._waiting) or (self._sink is not None and self._sink.pending)

    def take(self, data: memoryview) -> None:
        """Write data, or keep a copy.

        Raises:
            BrokenFrame: It is more than was allowed.
        """
        if self._name == "stderr" and len(self.first_errors) < _FIRST:
            self.first_errors += data[:_FIRST]
        if self._ended or self._gone:
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
            self.link.put(CREDIT, self.number, CREDIT_BYTES.pack(count))

    def _lose_reader(self, error: Gone) -> None:
        self._gone = True
        self._waiting.clear()
        self.link.put(CLOSED, self.number)
        if str(error):
            self._failed(f"{self._name}: {error}")
        self._tell()

    async def pump(self, opened: AbstractAsyncContextManager[Sink]) -> None:
        """Write bytes as they arrive until the end.

        Args:
            opened: The sink; closed as soon as it is not needed.
        """
        try:
            async with opened as self._sink:
                self.opened.set()
                await self._write_all(self._sink)
                self._sink = None
        finally:
            if not self._ended and not self._gone:
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
                elif self._ended:
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
            begun, slow, changed = trio.current_time(), self.full or self._ended, self._changed
            with trio.move_on_after(float("inf") if slow else patience):
                await changed.wait()
            if not slow:
                patience -= trio.current_time() - begun
