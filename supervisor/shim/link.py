"""Frames over a pair of descriptors: srun's standard streams, or the direct connection."""

import os
import time
from _collections import deque  # collections itself takes longer

from scrun.supervisor.wire.frames import NEWLINE, QUIET, BrokenFrame
from scrun.supervisor.wire.seals import NO_REST, PLAIN, REST, Reader

from .loop import READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from scrun.supervisor.wire.seals import Plain

    from .loop import Loop

    Seals = tuple[Plain, Plain, float]

_LONG = 1 << 20
_SHORT = 1 << 18
_AT_ONCE = 64
_TOGETHER = 1 << 12


class Link:
    """One connection: whole frames come and go, and nothing blocks.

    Attributes:
        broken: Why it can no longer be used; "" while it can.
        is_nonsense: Whether something arrived that is not a frame, or was changed on its way.
    """

    def __init__(
        self,
        loop: "Loop",
        source: int,
        sink: int,
        received: "Callable[[int, int, memoryview], None]",
        ended: "Callable[[], None]",
        lines: bool = False,
        seals: "Seals | None" = None,
    ) -> None:
        """Begin to send; `listen` begins to receive.

        Anything but a frame breaks the link, as does a BrokenFrame that `received` raises.

        Args:
            received: Gets kind, stream and payload, which is valid until it returns.
            sink: Where frames go; may be the source.
            ended: Called once, when it is broken.
            lines: Whether only whole lines arrive: see `frames.LINE`.
            seals: Those of both directions, and after how many seconds of silence a frame QUIET
                shows that nothing was left out; None: frames are plain.
        """
        self._loop, self._source, self._sink = loop, source, sink
        self._received, self._ended = received, ended
        self._line = NEWLINE if lines else b""
        self._seal, seal, self._quiet = seals or (PLAIN, PLAIN, 0.0)
        self._reader = Reader(seal)
        self._silence: object | None = None
        self._spoke = self._heard = 0.0
        self._rest: object | None = None
        self._queue: deque[memoryview] = deque()
        self._queued = 0
        self._listens = self._holds = False
        self._short: list[Callable[[], None]] = []
        self.broken = ""
        self.is_nonsense = False
        for fd in (source, sink):
            os.set_blocking(fd, False)

    def listen(self) -> None:
        self._listens = True
        self._watch()

    @property
    def is_long(self) -> bool:
        """Whether so much waits to be sent that no more should be read."""
        return self._queued >= _LONG

    def when_short(self, call: "Callable[[], None]") -> None:
        """Call once when little waits to be sent."""
        self._short.append(call)

    def send(self, kind: int, stream: int = 0, payload: bytes = b"") -> None:
        """Send a frame, now or when it can be."""
        if self.broken:
            return
        self._put(kind, stream, payload)
        if self._quiet:
            self._spoke = time.monotonic()
            if self._silence is None:
                self._silence = self._loop.after(self._quiet, self._is_silent)

    def together(self, do: "Callable[[], None]") -> None:
        """Call; send the frames that it sends in one write, after it."""
        self._holds = True
        try:
            do()
        finally:
            self._holds = False
            self._flush()

    def _put(self, kind: int, stream: int = 0, payload: bytes = b"") -> None:
        is_idle = not (self._queue or self._holds)
        head = self._seal.head(kind, stream, len(payload))
        tail = self._seal.tail(kind, payload) or self._line
        if len(payload) < _TOGETHER:
            parts: tuple[bytes, ...] = (head + payload + tail,)
        else:
            parts = (head, payload, tail) if tail else (head, payload)
        for part in parts:
            self._queue.append(memoryview(part))
            self._queued += len(part)
        if is_idle:
            self._flush()

    def _is_silent(self) -> None:
        """Once, show that nothing was left out at the end."""
        self._silence = None
        left = self._spoke + self._quiet - time.monotonic()
        if left > 0:
            self._silence = self._loop.after(left, self._is_silent)
        else:
            self._put(QUIET)

    def _is_late(self) -> None:
        """Fail if the rest of a frame does not arrive: somebody may have cut it."""
        self._rest = None
        left = self._heard + REST * self._quiet - time.monotonic()
        if not self._reader.is_within:
            return
        if left > 0:
            self._rest = self._loop.after(left, self._is_late)
        else:
            self._refuse(NO_REST)

    def _refuse(self, reason: str) -> None:
        self.is_nonsense = True
        self._fail(reason)

    def _flush(self) -> None:
        while self._queue:
            try:
                written = os.writev(self._sink, [self._queue[n] for n in range(self._some())])
            except BlockingIOError:
                break
            except OSError as error:
                self._fail(f"cannot write: {error}")
                return
            self._queued -= written
            while written:
                first = self._queue.popleft()
                if written < len(first):
                    self._queue.appendleft(first[written:])
                    break
                written -= len(first)
        self._watch()
        if self._short and self._queued <= _SHORT:
            waiting, self._short = self._short, []
            for call in waiting:
                call()

    def _some(self) -> int:
        return min(len(self._queue), _AT_ONCE)

    def _watch(self) -> None:
        if self.broken:
            return
        reads = READ if self._listens else 0
        writes = WRITE if self._queue else 0
        if self._source == self._sink:
            self._loop.watch(self._source, reads | writes, self._happened)
            return
        if reads:
            self._loop.watch(self._source, reads, self._happened)
        # also with nothing to send: the end of its reader is the end of this
        self._loop.watch(self._sink, writes, self._writable)

    def _happened(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if events & ~WRITE:
            self._read()

    def _writable(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        elif not self.broken:
            self._fail("nobody reads")

    def _read(self) -> None:
        if self.broken:
            return
        try:
            count = os.readv(self._source, [self._reader.room()])
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(f"cannot read: {error}")
            return
        if not count:
            self._fail("end")
            return
        try:
            for kind, stream, payload in self._reader.took(count):
                if kind != QUIET:
                    self._received(kind, stream, payload)
        except BrokenFrame as error:
            if not self.broken:  # else another one has taken its place
                self._refuse(str(error))
            return
        if self._quiet and not self.broken:
            self._heard = time.monotonic()
            if self._rest is None and self._reader.is_within:
                self._rest = self._loop.after(REST * self._quiet, self._is_late)

    def leave(self) -> None:
        """Close it without a word: another one takes its place, or will."""
        if not self.broken:
            self.broken = "it was left"
            self._empty()
        self._close()

    def _fail(self, reason: str) -> None:
        self.broken = reason
        self._empty()
        # srun's are closed by the end of the process; and its end is not to come before our word
        if self._source == self._sink and not self.is_nonsense:
            self._close()
        self._ended()

    def _close(self) -> None:
        for fd in {self._source, self._sink} - {-1}:
            os.close(fd)
        self._source = self._sink = -1

    def _empty(self) -> None:
        self._queue.clear()
        self._queued = 0
        self._loop.cancel(self._silence)
        self._loop.cancel(self._rest)
        self._loop.forget(self._source)
        self._loop.forget(self._sink)
        waiting, self._short = self._short, []
        for call in waiting:
            call()
