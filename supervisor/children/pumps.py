"""Reads or copies output of child processes, where that is necessary.

The engine's command inherits the container's stdio. Only the messages of commands pass here, line
by line, and a standard error that Slurm cannot reopen.

What a tool says may be kept so that a successor knows all of it: the supervisor may be killed
after it has read a message and before it has noted what follows from that. So messages are not
read from their pipe but moved into memory, by splice(2): at any moment each is in one of the two,
and a deposit keeps both. The successor begins with the first one.
"""

import os
import stat
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from subprocess import DEVNULL
from typing import IO

import trio

from scrun.core.errors import EngineError
from scrun.supervisor.children.processes import Child, ChildEnv, child, own_program
from scrun.supervisor.core.descriptors import may_hang
from scrun.supervisor.core.nurseries import unwrapped

LINE_LIMIT = 64 * 1024
_DRAIN = 2.0


async def lines(fd: int) -> AsyncIterator[str]:
    """Yield the lines of a pipe of ours until its end, and close it; splits overlong lines."""
    async with trio.lowlevel.FdStream(fd) as stream:
        cut = Cut()
        async for data in stream:
            for line in cut.lines(data):
                yield line
        for line in cut.rest():
            yield line


class Cut:
    """Cuts a text that arrives in parts into lines; splits overlong ones."""

    def __init__(self) -> None:
        self._rest = b""

    def lines(self, data: bytes | bytearray) -> Iterator[str]:
        """Take a part; yield the lines that end in it."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace").rstrip("\r")
        if len(self._rest) > LINE_LIMIT:
            yield from self.rest()

    def rest(self) -> Iterator[str]:
        """Yield what has no end."""
        rest, self._rest = self._rest, b""
        if rest:
            yield rest.decode(errors="replace")


class Output:
    """The lines that a script beside a container prints, up to some MiB.

    The container's processes control their size: by their names and their number.
    """

    def __init__(self, most: int = 16 << 20) -> None:
        """Keep at most so many characters."""
        self._lines: list[str] = []
        self._room = most

    def take(self, line: str) -> None:
        self._room -= len(line) + 64  # the memory of an empty one
        if self._room < 0:
            self._lines.clear()
        else:
            self._lines.append(line)

    @property
    def lines(self) -> list[str]:
        """All of them; raises EngineError if there were too many."""
        if self._room < 0:
            raise EngineError("the container's processes cannot be listed: there are too many")
        return self._lines


@asynccontextmanager
async def messages(
    receive: Callable[[str], None], hold: Callable[[int], None] | None = None
) -> AsyncIterator[int]:
    """Yield a descriptor for a child's standard error; call `receive` with each line.

    On exit, all lines written so far have been received; grandchildren that keep the descriptor
    open are not waited for. `hold` gets the other end, which a successor may go on to read.
    """
    readable, writable = os.pipe()
    if hold is not None:
        hold(readable)
    async with received(readable, receive):
        try:
            yield writable
        finally:
            os.close(writable)


async def heard(
    argv: Sequence[str],
    child_env: ChildEnv,
    errors: Callable[[str], None],
    output: Callable[[str], None] | None = None,
) -> int:
    """Run a child to its end; return its status when both have received what it has said."""
    async with AsyncExitStack() as stack:
        stderr = await stack.enter_async_context(messages(errors))
        stdout = DEVNULL if output is None else await stack.enter_async_context(messages(output))
        async with child(argv, child_env, stdout=stdout, stderr=stderr) as running:
            return await running.wait()


def received(readable: int, receive: Callable[[str], None]) -> AbstractAsyncContextManager[None]:
    """Call `receive` with each line of a pipe, owned from now on, while a block runs."""
    return pumped(lines(readable), receive)


@asynccontextmanager
async def pumped(
    source: AsyncIterable[str], receive: Callable[[str], None]
) -> AsyncIterator[None]:
    """Call `receive` with each line while the block runs, and with the rest when it is left."""
    drained = trio.Event()

    async def pump() -> None:
        # A child writes its last lines while it is being ended: the pump outlasts that.
        with trio.CancelScope(shield=True) as scope:
            scopes.append(scope)
            async for line in source:
                receive(line)
        drained.set()

    scopes: list[trio.CancelScope] = []
    async with unwrapped() as nursery:
        nursery.start_soon(pump)
        try:
            yield
        finally:
            with trio.move_on_after(_DRAIN, shield=True):
                await drained.wait()
            for scope in scopes:
                scope.cancel()
            nursery.cancel_scope.cancel()


def can_be_opened_again(fd: int) -> bool:
    """Return whether a stream can be reopened for writing through /proc/self/fd.

    srun does that with `--error`. A socket cannot be reopened, a terminal or a pipe may belong to
    another user (su), and a reopened regular file has an offset of its own, so that output and
    error would overwrite each other.
    """
    if may_hang(fd):
        return False
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        return False
    try:
        os.close(os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError:
        return False
    return True


@asynccontextmanager
async def tee(
    fd: int, child_env: ChildEnv, receive: Callable[[bytes | bytearray], None]
) -> AsyncIterator[int]:
    """Yield the write end of a pipe whose bytes go to `fd`, and to `receive` as they pass.

    On exit, all bytes have arrived, as with `cat_to`.
    """
    ended = trio.Event()
    scope = trio.CancelScope(shield=True)

    async def pump(source: trio.lowlevel.FdStream, sink: trio.lowlevel.FdStream) -> None:
        with scope:
            async with source, sink:
                try:
                    async for data in source:
                        receive(data)
                        await sink.send_all(data)
                except trio.BrokenResourceError:
                    pass  # its reader is gone
        ended.set()

    async with cat_to(fd, child_env) as pipe, unwrapped() as nursery:
        sink = trio.lowlevel.FdStream(os.dup(pipe))
        try:
            readable, writable = os.pipe()
        except OSError:
            await sink.aclose()
            raise
        nursery.start_soon(pump, trio.lowlevel.FdStream(readable), sink)
        try:
            yield writable
            os.close(writable)
            writable = -1
            await ended.wait()
        finally:
            if writable >= 0:
                os.close(writable)
            with trio.move_on_after(_DRAIN, shield=True):
                await ended.wait()
            scope.cancel()


@contextmanager
def _pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Yield the ends of a pipe, each of which may be closed before the block is left."""
    readable, writable = os.pipe()
    with open(readable, "rb", 0) as source, open(writable, "wb", 0) as sink:
        yield source, sink


@asynccontextmanager
async def cat_to(
    fd: int, child_env: ChildEnv, hold: Callable[[Child], None] | None = None
) -> AsyncIterator[int]:
    """Yield the write end of a pipe whose bytes a `cat` copies to `fd`.

    This takes a process, because a write to a shared descriptor may block, and making it non-
    blocking would change it for all who share it.

    On exit, all bytes have arrived, however slow their reader is. A cancellation waits for that
    only briefly. `hold` gets `cat`, which then outlives us as long as somebody has the pipe.
    """
    command = [own_program("cat")]
    with _pipe() as (readable, writable):
        async with child(
            command, child_env, stdin=readable.fileno(), stdout=fd, dies_with_us=hold is None
        ) as cat:
            if hold is not None:
                hold(cat)
            readable.close()
            try:
                yield writable.fileno()
                writable.close()
                await cat.wait()
            finally:
                writable.close()
                with trio.move_on_after(_DRAIN, shield=True):
                    await cat.wait()


@asynccontextmanager
async def cat_from(fd: int, child_env: ChildEnv) -> AsyncIterator[int]:
    """Yield the read end of a pipe to which a `cat` copies what it reads from `fd`.

    See `cat_to`. It may have read more than was taken from the pipe.
    """
    with _pipe() as (readable, writable):
        async with child([own_program("cat")], child_env, stdin=fd, stdout=writable.fileno()):
            writable.close()
            yield readable.fileno()


PIPE, MEMORY = "pipe", "memory"
"""The names by which our descriptors are kept."""

_MOST = 1 << 20  # a tool may repeat a message for days: later ones are not kept
_PART = 1 << 16
_NOBLOCK = 2  # SPLICE_F_NONBLOCK


class Transcript:
    """The messages of a tool; `before`: those that have arrived so far."""

    def __init__(self, pipe: int, memory: int) -> None:
        """Take over descriptors."""
        self._pipe, self._memory = pipe, memory
        self._cut = Cut()
        size = os.lseek(memory, 0, os.SEEK_END)
        self.before = [*self._cut.lines(os.pread(memory, size, 0))]

    @asynccontextmanager
    async def received(self, receive: Callable[[str], None]) -> AsyncIterator[None]:
        """Call `receive` with each new line while the block runs, as `pumps.messages` does."""
        try:
            async with pumped(self._lines(), receive):
                yield
        finally:
            os.close(self._pipe)
            os.close(self._memory)

    async def _lines(self) -> AsyncIterator[str]:
        while True:
            await trio.lowlevel.wait_readable(self._pipe)
            try:
                part = self._move()
            except BlockingIOError:
                continue
            for line in self._cut.lines(part) if part else self._cut.rest():
                yield line
            if not part:
                return

    def _move(self) -> bytes:
        size = os.lseek(self._memory, 0, os.SEEK_CUR)
        if size >= _MOST:
            return os.read(self._pipe, _PART)
        moved = os.splice(self._pipe, self._memory, _PART, flags=_NOBLOCK)
        return os.pread(self._memory, moved, size)


@asynccontextmanager
async def recorded(
    receive: Callable[[str], None], hold: Callable[[Mapping[str, int]], None]
) -> AsyncIterator[int]:
    """Yield a descriptor for a child's standard error; see `messages`.

    `hold` gets the descriptors that a successor needs for a `Transcript`.
    """
    memory = os.memfd_create("scrun-messages", os.MFD_CLOEXEC)
    try:
        readable, writable = os.pipe()
    except OSError:
        os.close(memory)
        raise
    hold({PIPE: readable, MEMORY: memory})
    async with Transcript(readable, memory).received(receive):
        try:
            yield writable
        finally:
            os.close(writable)
