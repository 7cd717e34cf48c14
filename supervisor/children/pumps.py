"""Bytes that have to be seen or carried, and only those.

The container's stdio goes to the engine's command as it is. What passes here are the messages of
commands, line by line, and a standard error that Slurm cannot open again.
"""

import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from scrun.core.errors import EngineError
from scrun.supervisor.children.processes import ChildEnv, child, own_program
from scrun.supervisor.core.nurseries import unwrapped

LINE_LIMIT = 64 * 1024
_DRAIN = 2.0


async def lines(fd: int) -> AsyncIterator[str]:
    """Yield the lines of a pipe of ours until its end; closes it.

    Overlong lines come in pieces.
    """
    async with trio.lowlevel.FdStream(fd) as stream:
        rest = b""
        async for data in stream:
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace").rstrip("\r")
            if len(rest) > LINE_LIMIT:
                yield rest.decode(errors="replace")
                rest = b""
        if rest:
            yield rest.decode(errors="replace")


class Output:
    """The lines that a script beside a container prints, up to some MiB.

    They have in them how the container's processes call themselves, and how many there are.
    """

    def __init__(self, most: int = 16 << 20) -> None:
        """Nothing was printed yet.

        Args:
            most: How many characters are read.
        """
        self._lines: list[str] = []
        self._room = most

    def take(self, line: str) -> None:
        """Take one in."""
        self._room -= len(line) + 64  # which an empty one takes
        if self._room < 0:
            self._lines.clear()
        else:
            self._lines.append(line)

    @property
    def lines(self) -> list[str]:
        """All of them.

        Raises:
            EngineError: There were too many.
        """
        if self._room < 0:
            raise EngineError("the container's processes cannot be listed: they are too many")
        return self._lines


@asynccontextmanager
async def messages(receive: Callable[[str], None]) -> AsyncIterator[int]:
    """Give a descriptor for a child's standard error; call `receive` with each line.

    When the block is left the lines that are there already have been received; a grandchild
    that keeps the descriptor open is not waited for.
    """
    readable, writable = os.pipe()

    heard_all = trio.Event()

    async def pump() -> None:
        # The last words of a child come while it is being ended: the pump outlasts that.
        with trio.CancelScope(shield=True) as scope:
            scopes.append(scope)
            async for line in lines(readable):
                receive(line)
        heard_all.set()

    scopes: list[trio.CancelScope] = []
    async with unwrapped() as nursery:
        nursery.start_soon(pump)
        try:
            yield writable
        finally:
            os.close(writable)
            with trio.move_on_after(_DRAIN, shield=True):
                await heard_all.wait()
            for scope in scopes:
                scope.cancel()
            nursery.cancel_scope.cancel()


def can_be_opened_again(fd: int) -> bool:
    """Tell whether the same stream can be opened for writing through /proc/self/fd.

    srun does that with `--error`. A socket has no such way, a terminal or a pipe may belong to
    another user (su), and a regular file opened again has an offset of its own, so that output
    and error would write over each other.
    """
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        return False
    try:
        os.close(os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError:
        return False
    return True


@asynccontextmanager
async def overheard(
    fd: int, child_env: ChildEnv, hear: Callable[[bytes | bytearray], None]
) -> AsyncIterator[int]:
    """Give the writing end of a pipe whose bytes go to `fd`, and to `hear` as they pass.

    When the block is left all bytes have arrived, as with `carried`.
    """
    ended = trio.Event()
    scope = trio.CancelScope(shield=True)

    async def pump(source: trio.lowlevel.FdStream, sink: trio.lowlevel.FdStream) -> None:
        with scope:
            async with source, sink:
                try:
                    async for data in source:
                        hear(data)
                        await sink.send_all(data)
                except trio.BrokenResourceError:
                    pass  # nobody reads it any more
        ended.set()

    async with carried(fd, child_env) as pipe, unwrapped() as nursery:
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


@asynccontextmanager
async def carried(fd: int, child_env: ChildEnv) -> AsyncIterator[int]:
    """Give the writing end of a pipe whose bytes `cat` carries to `fd`.

    A process of its own, because a write to somebody else's descriptor may block, and making
    that non-blocking would change it for all who share it.

    When the block is left all bytes have arrived, however slow their reader is; unless it is
    left because of a cancellation, which does not wait for long.
    """
    readable, writable = os.pipe()
    try:
        async with child([own_program("cat")], child_env, stdin=readable, stdout=fd) as cat:
            os.close(readable)
            readable = -1
            try:
                yield writable
                os.close(writable)
                writable = -1
                await cat.wait()
            finally:
                if writable >= 0:
                    os.close(writable)
                    writable = -1
                with trio.move_on_after(_DRAIN, shield=True):
                    await cat.wait()
    finally:
        for end in (readable, writable):
            if end >= 0:
                os.close(end)
