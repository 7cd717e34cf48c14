"""Reads input so that a successor knows which bytes were read, and has those that did not arrive.

The bytes that were read are in shared memory until the shim has them: in a ring as large as the
window, so that nothing is overwritten before there was credit for it. Between a read and a note of
it we can be killed. So bytes are moved into a pipe of ours first, by splice(2), and read from
there: the earlier content, which is noted, less the present one, was read. For a regular file its
offset tells the same.
"""

import os

import trio

from scrun.supervisor.nodes.counted_sink import Count, Hold, SplicedPipe, left_in, new_pipe
from scrun.supervisor.nodes.ends import RegularFile
from scrun.supervisor.shim.frames import WINDOW

PIPE, RING = "pipe", "ring"
"""The names by which our descriptors are kept."""

_ENDED = 3


class Ring(Count):
    """The last bytes of a stream that were read, and their number."""

    def __init__(self, fd: int | None = None, size: int = WINDOW) -> None:
        """Like `Count`.

        Args:
            fd: The memory, which is owned from now on; None for a new one.
            size: How many bytes it has, always the same.
        """
        super().__init__(fd, size)
        self._size = size

    @property
    def ended(self) -> bool:
        """Whether the end of the stream was read."""
        return bool(self._words[_ENDED])

    def end(self) -> None:
        """Note that the end was read."""
        self._words[_ENDED] = 1

    def at(self, position: int, most: int) -> memoryview:
        """Return the memory of a byte of the stream, and of those behind it, at most so many."""
        start = position % self._size
        return self.memory[start : min(start + most, self._size)]


class CountedSource:
    """Input that is read exactly (see `supervisor.nodes.ends.Source`).

    Attributes:
        plain: What is read; None if another supervisor has read all.
    """

    def __init__(
        self,
        plain: SplicedPipe | RegularFile | None,
        hold: Hold,
        ring: Ring | None = None,
        pipe: int = -1,
        size: int = WINDOW,
    ) -> None:
        """Begin, or continue where another supervisor was killed.

        Args:
            plain: The source, which stays its owner's.
            hold: Keeps the descriptors; called before the first byte.
            ring: What the other supervisor has read; owned from now on.
            pipe: The pipe of the other supervisor; likewise.
            size: How many bytes may have been read and not arrived.
        """
        self.plain = plain
        self._hold = hold
        self._ring = ring
        self._pipe = pipe
        self._size = size
        if ring is not None and ring.undecided:
            if isinstance(plain, RegularFile):
                read = plain.offset - ring.offset
            else:
                read = ring.offset - left_in(pipe) if pipe >= 0 else 0
            ring.put(max(0, min(read, ring.undecided)))
        self._given = ring.done if ring is not None else 0

    @property
    def is_left(self) -> bool:
        """Whether there is something to read, or was."""
        return self.plain is not None or self._ring is not None

    def close(self) -> None:
        """Close what is ours."""
        if self._ring is not None:
            self._ring.close()
            self._ring = None
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def go_to(self, position: int) -> None:
        """Give the bytes from this one on, or from the nearest that is still there."""
        done = self._ring.done if self._ring is not None else 0
        self._given = min(max(position, done - self._size, 0), done)

    async def read_into(self, room: memoryview) -> int:
        """Read; return the number of bytes, 0 at the end of file or after an error.

        Before more than its size is read, the bytes before must have arrived.
        """
        await trio.lowlevel.checkpoint()
        if self._ring is None and not await self._begin():
            return 0
        ring = self._ring
        assert ring is not None
        if self._given == ring.done and (ring.ended or not await self._fill(ring, len(room))):
            ring.end()
            return 0
        read = ring.at(self._given, min(len(room), ring.done - self._given))
        room[: len(read)] = read
        self._given += len(read)
        return len(read)

    async def _begin(self) -> bool:
        """Prepare for the first byte; many containers never get one."""
        if self.plain is None:
            return False
        if isinstance(self.plain, SplicedPipe):
            await trio.lowlevel.wait_readable(self.plain.fd)
            self._pipe = new_pipe()
        self._ring = Ring(None, self._size)
        self._hold({RING: self._ring.fd, **({PIPE: self._pipe} if self._pipe >= 0 else {})})
        return True

    async def _fill(self, ring: Ring, most: int) -> bool:
        """Read into the ring; return whether there was something."""
        if isinstance(self.plain, RegularFile):
            return await self.plain.read_into(ring.at(ring.done, most), ring) > 0
        if self.plain is None:
            return False
        while not (left := left_in(self._pipe)):
            try:
                if not self.plain.move_to(self._pipe, most):
                    return False
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self.plain.fd)
            except OSError:  # of a terminal: it was hung up
                return False
        place = ring.at(ring.done, min(left, most))
        ring.begin(len(place), left)
        read = os.readv(self._pipe, [place])
        ring.put(read)
        self.plain.count(read)
        return True
