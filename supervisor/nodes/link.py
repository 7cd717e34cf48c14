"""A connection to a shim, over which frames travel both ways (`supervisor.wire.frames`)."""

import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import trio

from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.nodes.dialing import Proved
from scrun.supervisor.wire.frames import LINE, LONGEST, QUIET, BrokenFrame
from scrun.supervisor.wire.seals import NO_REST, PLAIN, REST, Plain, Reader, sealed

_MOST_BEFORE = 1 << 20
_MOST_AT_ONCE = 64  # buffers, for writev(2)

Dispatch = Callable[[int, int, memoryview], None]
"""Takes a frame: kind, stream and payload, which is valid until it returns. DATA may arrive in
parts, and one without a payload is left out.

It may raise BrokenFrame.
"""
Longest = Callable[[int], int]
"""Returns the most bytes of the payload of a frame of some kind, at this moment."""


class Broken(Exception):
    """The connection has ended, or received something that is not a frame; the reason."""


def buffer(size: int) -> memoryview:
    """Return memory that is taken from the system when it is written, unlike a bytearray's."""
    return memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


class Sealing(NamedTuple):
    """How the frames of direct connections are sealed (`supervisor.shim`, Seals).

    Attributes:
        streams: Whether the bytes of streams are, too.
        quiet: After how many seconds of silence a frame shows that nothing was left out.
        gmac: Whether this processor seals large payloads faster by GMAC.
    """

    streams: bool = True
    quiet: float = 20.0
    gmac: bool = False


SEALING = Sealing()


class Seals(NamedTuple):
    """The seals of one connection; `Sealing.quiet` is 0 without."""

    theirs: Plain = PLAIN
    ours: Plain = PLAIN
    quiet: float = 0.0
    gmac: bool = False


_NO_SEALS = Seals()


def direct_link(proved: Proved, sealing: Sealing | None) -> "ShimLink":
    """Return the link over a direct connection, whose frames are plain until its `seal`.

    Without `sealing` for a shim that cannot.
    """
    seals = _NO_SEALS
    if sealing is not None:
        theirs, ours = sealed(proved.secret, proved.both, sealing.streams)
        seals = Seals(theirs, ours, sealing.quiet, sealing.gmac)
    return ShimLink(proved.fd, proved.fd, seals=seals)


class ShimLink:
    """One connection: srun's standard input and output, or a socket."""

    def __init__(
        self, readable: int, writable: int, begins_with: bytes = b"", seals: Seals = _NO_SEALS
    ) -> None:
        """Take descriptors over, which `run` closes; those of a socket are the same.

        Bytes before `begins_with`, the first ones of the first frame, are skipped, because sites
        have scripts that write to a step's output. "": nothing precedes it.
        """
        self.before = bytearray()
        self._readable = readable
        self._writable = writable
        self._begins_with = begins_with
        self._seals, self._used = seals, _NO_SEALS
        self._reader: Reader | None = None
        self._is_shown = True  # that nothing was left out
        self._spoke = 0.0
        self._begins_silence = False  # whether the next frame does, for the task that writes
        self._queue: deque[tuple[memoryview, trio.Event | None]] = deque()
        self._something = trio.Event()
        self._holds = False  # what is put, until more is
        self._broken: str | None = None
        for fd in {readable, writable}:
            os.set_blocking(fd, False)

    def seal(self) -> None:
        """Seal frames from now on, in both directions."""
        self._used = self._seals
        self._begins_silence = True
        if self._reader is not None:
            self._reader.seal(self._used.theirs)

    def use_gmac(self) -> None:
        """Seal large payloads by GMAC from now on, if we can, whatever the shim says."""
        if self._seals.gmac:
            self._seals.theirs.use_gmac()
            self._seals.ours.use_gmac()

    def put(self, kind: int, stream: int = 0, payload: bytes = b"") -> None:
        """Send a frame, at once if none waits already."""
        self._add(kind, stream, payload, None)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Send the frames that are put in the block in one write, at its end."""
        self._holds = True
        try:
            yield
        finally:
            self._holds = False
            self._write_now()

    async def send(self, kind: int, stream: int, payload: memoryview) -> None:
        """Send a frame and wait until it is written: its memory is free then; Broken if not.

        It does not yield to others where that is at once.
        """
        written = trio.Event()
        self._add(kind, stream, payload, written)
        if not written.is_set():
            await written.wait()
        if self._broken is not None:
            raise Broken(self._broken)

    def _add(
        self, kind: int, stream: int, payload: bytes | memoryview, written: trio.Event | None
    ) -> None:
        if self._broken is not None:
            if written is not None:
                written.set()
            return
        self._is_shown, self._spoke = kind == QUIET, trio.current_time()
        writes = not (self._queue or self._holds)
        head = self._used.ours.head(kind, stream, len(payload))
        tail = self._used.ours.tail(kind, payload)
        *parts, last = [memoryview(part) for part in (head, payload, tail) if part]
        self._queue.extend((part, None) for part in parts)
        self._queue.append((last, written))
        if writes:
            self._write_now()
        elif not self._holds:
            self._something.set()

    def _write_now(self) -> None:
        with suppress(OSError):  # the task that writes has it, too
            self._write()
        if self._queue or self._begins_silence:
            self._something.set()

    async def run(self, dispatch: Dispatch, longest: Longest = lambda _: LONGEST) -> None:
        """Carry frames until the connection breaks; then close it, and raise Broken."""
        reason = "it was closed"
        try:
            async with unwrapped() as nursery:
                nursery.start_soon(self._write_all)
                self._reader = Reader(self._used.theirs, longest, in_parts=True)
                await self._read_all(self._reader, dispatch)
        except* (OSError, BrokenFrame) as group:
            error = group.exceptions[0]
            reason = getattr(error, "strerror", None) or str(error)
        finally:
            self.close(reason)
        raise Broken(reason)

    def close(self, reason: str) -> None:
        """Close it; nothing can be sent any more."""
        self._broken = reason
        for _, written in self._queue:
            if written is not None:
                written.set()
        self._queue.clear()
        for fd in {self._readable, self._writable}:
            trio.lowlevel.notify_closing(fd)
            os.close(fd)

    def _write(self) -> None:
        """Write what waits.

        Raises:
            OSError: It cannot be written; BlockingIOError: not all of it fits.
        """
        queue = self._queue
        while queue:
            count = min(len(queue), _MOST_AT_ONCE)
            written = os.writev(self._writable, [queue[at][0] for at in range(count)])
            while queue and written >= len(queue[0][0]):
                frame, event = queue.popleft()
                written -= len(frame)
                if event is not None:
                    event.set()
            if written:
                frame, event = queue[0]
                queue[0] = frame[written:], event

    async def _write_all(self) -> None:
        while True:
            if not self._queue:
                await self._wait()
            try:
                self._write()
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._writable)
            await trio.lowlevel.checkpoint()

    async def _wait(self) -> None:
        """Wait for something to send; in silence show, once, that nothing was left out."""
        self._something = trio.Event()
        quiet = self._used.quiet
        self._begins_silence = bool(quiet) and self._is_shown
        if self._is_shown or not quiet:
            await self._something.wait()
            return
        with trio.move_on_at(self._spoke + quiet):
            await self._something.wait()
        if not self._queue and trio.current_time() >= self._spoke + quiet:
            self.put(QUIET)

    async def _wait_for_more(self, reader: Reader) -> None:
        """Wait for something to read, for ever only between frames: somebody may have cut one."""
        if not self._used.quiet or not reader.is_within:
            await trio.lowlevel.wait_readable(self._readable)
            return
        with trio.move_on_after(REST * self._used.quiet):
            await trio.lowlevel.wait_readable(self._readable)
            return
        raise BrokenFrame(NO_REST)

    async def _read_all(self, reader: Reader, dispatch: Dispatch) -> None:
        skipping = bool(self._begins_with)
        while True:
            room = reader.room()
            try:
                count = os.readv(self._readable, [room])
            except BlockingIOError:
                await self._wait_for_more(reader)
                continue
            if not count:
                raise BrokenFrame("it ended")
            if skipping:
                looked = max(0, len(self.before) - len(self._begins_with) + 1)
                self.before += room[:count]
                at = self.before.find(self._begins_with, looked)
                if at < 0 and len(self.before) > _MOST_BEFORE:
                    raise BrokenFrame("it sent something that is not a frame")
                skipping = at < 0
                data = memoryview(b"" if skipping else bytes(self.before[at:]))
                if not skipping:
                    del self.before[at:]
                found = reader.feed(data)
            else:
                found = reader.took(count)
            for kind, stream, payload in found:
                if kind not in (LINE, QUIET):
                    dispatch(kind, stream, payload)
            if count < len(room):  # that was all: another read would only tell the same
                await self._wait_for_more(reader)
            else:
                await trio.lowlevel.checkpoint()
