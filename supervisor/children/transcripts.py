"""What a tool says, kept so that a successor knows all of it.

The supervisor may be killed after it has read a message and before it has noted what follows from
that. So messages are not read from their pipe but moved into memory, by splice(2): at any moment
each is in one of the two, and a deposit keeps both. The successor begins with the first one.
"""

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import trio

from scrun.supervisor.children.pumps import Cut, pumped

PIPE, MEMORY = "pipe", "memory"
"""The names by which our descriptors are kept."""

_MOST = 1 << 20  # a tool may repeat a message for days: later ones are not kept
_PART = 1 << 16
_NOBLOCK = 2  # SPLICE_F_NONBLOCK


class Transcript:
    """The messages of a tool.

    Attributes:
        before: Those that have arrived so far.
    """

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
    """Yield a descriptor for a child's standard error; see `pumps.messages`.

    Args:
        hold: Called with the descriptors that a successor needs for a `Transcript`.
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
