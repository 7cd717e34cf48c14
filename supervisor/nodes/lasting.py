"""Output streams that a successor can go on with."""

import fcntl
import os
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol

from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.nodes.ends import Pipe, Sink, Source, sink, source
from scrun.supervisor.nodes.exact import Count, ExactFile, ExactPipe
from scrun.supervisor.nodes.files import RegularFile

OUTPUTS = ("stdout", "stderr")


class Keeping(Protocol):
    """What keeps descriptors for a successor (`supervisor.core.deposits.Deposit`)."""

    def hold(self, fds: Mapping[str, int]) -> None:
        """Keep descriptors, by their names."""
        ...

    def drop(self, *beginnings: str) -> None:
        """Let those go whose names begin so."""
        ...

    def give_up(self, why: str) -> None:
        """Keep nothing."""
        ...


class LastingEnds:
    """The descriptors of a container's caller (see `supervisor.nodes.streams.Ends`)."""

    def __init__(self, stdio: tuple[int, int, int], child_env: ChildEnv, keeping: Keeping) -> None:
        """Use them as long as streams are carried.

        Args:
            stdio: Standard input, output and error.
            child_env: For a `cat`.
            keeping: Keeps what a successor needs.
        """
        self._stdio, self._child_env, self._keeping = stdio, child_env, keeping

    def source(self) -> AbstractAsyncContextManager[Source]:
        """Open the standard input."""
        self._keeping.give_up("its standard input is not /dev/null")
        return source(self._stdio[0], self._child_env)

    def sink(self, name: str) -> AbstractAsyncContextManager[Sink]:
        """Open an output."""
        fd = self._stdio[("stdin", *OUTPUTS).index(name)]
        return exact_sink(name, fd, self._child_env, self._keeping)


class ResumedEnds:
    """The outputs that a supervisor has left which has died."""

    def __init__(self, fds: Mapping[str, int], keeping: Keeping) -> None:
        """Take them over.

        Args:
            fds: What was kept of them; owned from now on.
            keeping: Keeps it further.
        """
        self._keeping = keeping
        self._sinks = {name: revive(name, fds, keeping) for name in OUTPUTS if name in fds}

    @property
    def written(self) -> dict[str, int]:
        """How many bytes of each were written."""
        return {name: one.written for name, one in self._sinks.items()}

    def source(self) -> AbstractAsyncContextManager[Source]:
        """Have no standard input."""
        raise NotImplementedError

    def sink(self, name: str) -> AbstractAsyncContextManager[Sink]:
        """Go on with an output."""
        return revived(name, self._sinks[name], self._keeping)


@asynccontextmanager
async def exact_sink(
    name: str, fd: int, child_env: ChildEnv, keeping: Keeping
) -> AsyncIterator[Sink]:
    """Open a caller's descriptor for writing, so that a successor can go on exactly.

    Where that is not possible, nothing is kept. A pipe is not opened anew, for splice(2) need not
    wait.

    Args:
        name: The stream's name.
        fd: The descriptor; stays as it is.
        child_env: For a `cat`.
        keeping: Keeps what a successor needs, as long as the block runs.
    """
    async with AsyncExitStack() as stack:
        plain: Pipe | RegularFile
        if _is_pipe(fd):
            plain = Pipe(os.dup(fd))
            stack.callback(plain.close)
        else:
            other = await stack.enter_async_context(sink(fd, child_env))
            if not isinstance(other, RegularFile):
                keeping.give_up(f"its {name} is neither a pipe nor a file")
                yield other
                return
            plain = other
        keeping.hold({name: plain.fd})
        exact = _exact(name, plain, keeping, {})
        try:
            yield exact
        finally:
            keeping.drop(name)
            exact.close()


def _is_pipe(fd: int) -> bool:
    writable = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    return writable and stat.S_ISFIFO(os.fstat(fd).st_mode)


def revive(name: str, fds: Mapping[str, int], keeping: Keeping) -> ExactPipe | ExactFile:
    """Take over a sink of a supervisor that has died.

    Args:
        name: The stream's name.
        fds: What `exact_sink` has kept; those of the stream are owned from now on.
        keeping: Keeps it further.
    """
    keeping.hold({key: fd for key, fd in fds.items() if key.startswith(name)})
    fd = fds[name]
    plain: Pipe | RegularFile
    plain = Pipe(fd) if stat.S_ISFIFO(os.fstat(fd).st_mode) else RegularFile(fd)
    return _exact(name, plain, keeping, fds)


@asynccontextmanager
async def revived(
    name: str, exact: ExactPipe | ExactFile, keeping: Keeping
) -> AsyncIterator[Sink]:
    """Write to what was revived; closed when the block is left."""
    try:
        yield exact
    finally:
        keeping.drop(name)
        exact.close()
        exact.plain.close()


def _exact(
    name: str, plain: Pipe | RegularFile, keeping: Keeping, fds: Mapping[str, int]
) -> ExactPipe | ExactFile:
    def hold(more: dict[str, int]) -> None:
        keeping.hold({f"{name}.{what}": fd for what, fd in more.items()})

    count = Count(fds[f"{name}.count"]) if f"{name}.count" in fds else None
    if isinstance(plain, RegularFile):
        return ExactFile(plain, hold, count)
    return ExactPipe(plain, hold, count, fds.get(f"{name}.pipe", -1))
