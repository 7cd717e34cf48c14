"""Streams of a container that a successor can go on with."""

import os
import stat
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Protocol, TypeVar

from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.nodes.counted import (
    PIPE,
    RING,
    Count,
    CountedFile,
    CountedPipe,
    CountedSource,
    Hold,
    Ring,
    SplicedPipe,
    spliced_pipe,
)
from scrun.supervisor.nodes.ends import RegularFile, Sink, Source, sink, source

_STANDARD = ("stdin", "stdout", "stderr")
_OUTPUTS = ("stdout", "stderr", "terminal")
_INPUT = "input."
_PLAIN = "plain"
_UNREAD = (_INPUT + _PLAIN, _INPUT + PIPE)
READ = _INPUT + RING
"""The name of the input that was read: kept from the first byte on."""

STREAMS = (*_OUTPUTS, _INPUT)
"""Begin the names of the descriptors that are kept of streams."""

NO_STDIO = (-1, -1, -1)

T = TypeVar("T")
E = TypeVar("E", bound=CountedPipe | CountedFile | CountedSource)


class Deposited(Protocol):
    """What keeps descriptors for a successor (`supervisor.core.deposits.Deposit`)."""

    def hold(self, fds: Mapping[str, int]) -> None: ...

    def share(self, fds: Mapping[str, int]) -> None:
        """Do the same with those that are not closed before `drop`."""
        ...

    def drop(self, *beginnings: str) -> None:
        """Let those go whose names begin so."""

    def give_up(self, why: str) -> None:
        """Keep nothing."""


class RestartableStreams:
    """The descriptors of a container's caller (see `supervisor.nodes.streams.Ends`).

    Attributes:
        stdio: Those for standard input, output and error; all the same for a terminal. Of what was
            found only a terminal is among them.
    """

    def __init__(
        self,
        stdio: tuple[int, int, int],
        child_env: ChildEnv,
        keeping: Deposited,
        found: dict[str, int] | None = None,
    ) -> None:
        """`found`: what a supervisor that has died has left, in place of `stdio`.

        The descriptors of streams are taken out of it, and owned from now on.
        """
        self.stdio, self._child_env, self._keeping = stdio, child_env, keeping
        self._sinks: dict[str, CountedPipe | CountedFile] = {}
        self._source: CountedSource | None = None
        if found is not None:
            fds = {name: found.pop(name) for name in [*found] if name.startswith(STREAMS)}
            keeping.hold({name: fd for name, fd in fds.items() if name == READ})
            keeping.share({name: fd for name, fd in fds.items() if name != READ})
            self._sinks = {
                name: _exact(name, _plain(fds[name]), keeping, fds)
                for name in _OUTPUTS
                if name in fds
            }
            self._source = _revived_source(fds, keeping)
            self.stdio = (fds.get("terminal", -1),) * 3

    @property
    def written(self) -> dict[str, int]:
        """How many bytes of each output were written."""
        return {name: one.written for name, one in self._sinks.items()}

    def fields(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """Return those of the streams that are not over, by name, as `ContainerStreams.fields`."""
        left = {name: numbers[name] for name in self._sinks}
        if "stdin" in numbers and self.has_input:
            left["stdin"] = numbers["stdin"]
        return left

    def written_by(self, fields: Mapping[str, int]) -> dict[int, int]:
        """Return how many bytes of each output were written, by its number."""
        return {fields[name]: count for name, count in self.written.items()}

    @property
    def has_input(self) -> bool:
        """Whether something is left of the standard input, even if it was read to its end."""
        return self._source is not None and self._source.is_left

    def source(self) -> AbstractAsyncContextManager[Source]:
        if (found := self._source) is not None:
            return self._held(found, *_UNREAD)
        return counted_source(self.stdio[0], self._child_env, self._keeping)

    def sink(self, name: str) -> AbstractAsyncContextManager[Sink]:
        if name in self._sinks:
            return self._held(self._sinks[name], name)
        fd = self.stdio[_STANDARD.index(name) if name in _STANDARD else 0]
        return counted_sink(name, fd, self._child_env, self._keeping)

    @asynccontextmanager
    async def _held(self, found: E, *names: str) -> AsyncIterator[E]:
        """Go on with one that was found, which is kept by these names."""
        try:
            with _kept(found, self._keeping, *names):
                yield found
        finally:
            if found.plain is not None:
                found.plain.close()


@asynccontextmanager
async def counted_source(
    fd: int, child_env: ChildEnv, keeping: Deposited
) -> AsyncIterator[Source]:
    """Open a caller's descriptor for reading, so that a successor can go on exactly.

    The descriptor stays as it is. Where that is not possible, nothing is kept. What was read is
    kept longer: it may not have arrived when the end is read.
    """
    async with _opened(fd, os.O_RDONLY, source(fd, child_env)) as plain:
        if not isinstance(plain, SplicedPipe | RegularFile):
            keeping.give_up("its standard input cannot be handed over")
            yield plain
            return
        keeping.share({_INPUT + _PLAIN: plain.fd})
        exact = CountedSource(plain, _holding(_INPUT, keeping.hold))
        with _kept(exact, keeping, *_UNREAD):
            yield exact


@asynccontextmanager
async def counted_sink(
    name: str, fd: int, child_env: ChildEnv, keeping: Deposited
) -> AsyncIterator[Sink]:
    """Open a caller's descriptor for writing; likewise, as long as the block runs."""
    async with _opened(fd, os.O_WRONLY, sink(fd, child_env)) as plain:
        if not isinstance(plain, SplicedPipe | RegularFile):
            keeping.give_up(f"its {name} cannot be handed over")
            yield plain
            return
        keeping.share({name: plain.fd})
        with _kept(_exact(name, plain, keeping, {}), keeping, name) as exact:
            yield exact


@contextmanager
def _kept(end: E, keeping: Deposited, *names: str) -> Iterator[E]:
    """Close an end when the block is left, and keep it by these names no longer."""
    try:
        yield end
    finally:
        keeping.drop(*names)
        end.close()


@asynccontextmanager
async def _opened(
    fd: int, mode: int, other: AbstractAsyncContextManager[T]
) -> AsyncIterator[SplicedPipe | T]:
    """Open a descriptor by splice(2), or else otherwise; close it when the block is left."""
    plain = await spliced_pipe(fd, mode)
    if plain is None:
        async with other as end:
            yield end
        return
    try:
        yield plain
    finally:
        plain.close()


def _revived_source(fds: Mapping[str, int], keeping: Deposited) -> CountedSource:
    left = {name.removeprefix(_INPUT): fd for name, fd in fds.items()}
    ring = Ring(left[RING]) if RING in left else None
    plain = _plain(left[_PLAIN]) if _PLAIN in left else None
    return CountedSource(plain, _holding(_INPUT, keeping.hold), ring, left.get(PIPE, -1))


def _holding(beginning: str, hold: Hold) -> Hold:
    """Return what keeps descriptors by names that begin so."""
    return lambda fds: hold({beginning + name: fd for name, fd in fds.items()})


def _exact(
    name: str, plain: SplicedPipe | RegularFile, keeping: Deposited, fds: Mapping[str, int]
) -> CountedPipe | CountedFile:
    count = Count(fds[f"{name}.count"]) if f"{name}.count" in fds else None
    hold = _holding(f"{name}.", keeping.share)
    if isinstance(plain, RegularFile):
        return CountedFile(plain, hold, count)
    return CountedPipe(plain, hold, count, fds.get(f"{name}.pipe", -1))


def _plain(fd: int) -> SplicedPipe | RegularFile:
    """Return the kept descriptor, which is ours now."""
    return RegularFile(fd) if stat.S_ISREG(os.fstat(fd).st_mode) else SplicedPipe(fd)
