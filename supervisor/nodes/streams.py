"""The streams of a container or an exec, between the caller's descriptors and the shim.

A stream may have `frames.WINDOW` bytes on their way, and credit for more is given only for bytes
that were written onwards. So memory is bounded, and a reader that stops stops the container's
writer.
"""

import itertools
import os
import termios
import tty
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from types import TracebackType
from typing import Protocol, Self

import trio

from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.nodes.ends import Sink, Source, is_null, sink, source
from scrun.supervisor.nodes.incoming import Incoming
from scrun.supervisor.nodes.outgoing import Outgoing
from scrun.supervisor.nodes.table import StreamTable

NAMES = ("stdin", "stdout", "stderr")
_ALL = (*NAMES, "terminal")
_ROWS, _COLUMNS = 24, 80


class Ends(Protocol):
    """What is read and written instead of the caller's descriptors."""

    def source(self) -> AbstractAsyncContextManager[Source]:
        """Open what the container's standard input comes from."""
        ...

    def sink(self, name: str) -> AbstractAsyncContextManager[Sink]:
        """Open what its output goes to."""
        ...


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
        ends: Ends | None = None,
        fields: Mapping[str, int] | None = None,
    ) -> None:
        """See `Shim.streams`; those with `fields` were begun by another supervisor."""
        self.fields: dict[str, int] = {**(fields or {})}
        self._table = table
        self._stdio = stdio
        self._terminal = stdio[0] if terminal else None
        self._child_env = child_env
        self._journal = journal
        self._tell_shim = tell
        self._ends = ends
        self._is_begun = fields is not None
        self._incoming: list[Incoming] = []
        self._running: AbstractAsyncContextManager[None] | None = None
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
                yield
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

    def _failed(self, reason: str) -> None:
        self._journal.write("error", reason)


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
