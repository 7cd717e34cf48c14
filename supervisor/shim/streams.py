"""Carries bytes between the containers' pipes and terminals and the supervisor, within windows."""

import errno
import os
from _collections import deque  # collections itself takes longer

from scrun.supervisor.wire.frames import (
    CLOSED,
    CREDIT,
    CREDIT_BYTES,
    DATA,
    END,
    PIECE,
    WINDOW,
    BrokenFrame,
)

from .loop import READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from .link import Link
    from .loop import Loop

_TELL = WINDOW // 4


class ShimStreams:
    """All streams, by number, and where their frames go.

    Attributes:
        link: The connection that carries them; settled before the first one exists.
    """

    def __init__(self, loop: "Loop", link: "Link") -> None:
        self.loop = loop
        self.link = link
        self._sources: dict[int, OutputStream] = {}
        self._sinks: dict[int, InputStream] = {}

    def source(
        self,
        number: int,
        fd: int,
        terminal: bool = False,
        ended: "Callable[[], None] | None" = None,
    ) -> "OutputStream":
        """Carry from a descriptor to the supervisor, once `begin` is called.

        Args:
            ended: Called at its end, of a socket. Its other end may reset that: then CLOSED
                precedes END.
        """
        _check(number, self._sources)
        self._sources[number] = source = OutputStream(self, number, fd, terminal, ended)
        return source

    def sink(
        self, number: int, fd: int, closed: "Callable[[], None] | None" = None
    ) -> "InputStream":
        """Carry from the supervisor to a descriptor; -1: it is given later.

        Args:
            closed: Called when the descriptor is closed.
        """
        _check(number, self._sinks)
        self._sinks[number] = sink = InputStream(self, number, fd, closed)
        return sink

    def forget_source(self, number: int) -> None:
        self._sources.pop(number, None)

    def resume(self, written: "Mapping[str, int]") -> None:
        """Begin again over another connection: the last one may have lost frames.

        Args:
            written: How many bytes of each source the supervisor has written onwards.
        """
        for number, source in list(self._sources.items()):
            source.resume(int(written.get(str(number), 0)))

    def inputs(self) -> "dict[str, tuple[int, int]]":
        """Return how many bytes of each sink have arrived, and how many more may; begin there."""
        return {str(number): sink.resume() for number, sink in self._sinks.items()}

    def forget_sink(self, number: int) -> None:
        self._sinks.pop(number, None)

    def close_sink(self, number: int) -> None:
        """Close the other direction of a terminal."""
        sink = self._sinks.get(number)
        if sink is not None:
            sink.close()

    def dispatch(self, kind: int, number: int, payload: memoryview) -> None:
        """Take a frame of the supervisor's. Frames of streams that have ended are ignored.

        Raises:
            BrokenFrame: Its payload is wrong.
        """
        if kind in (DATA, END):
            sink = self._sinks.get(number)
            if sink is not None:
                sink.take(payload, kind == END)
            return
        source = self._sources.get(number)
        if kind == CREDIT:
            if len(payload) != CREDIT_BYTES.size:
                raise BrokenFrame(f"a credit of {len(payload)} bytes")
            if source is not None:
                source.credit(CREDIT_BYTES.unpack(payload)[0])
        elif kind == CLOSED and source is not None:
            source.closed()


class OutputStream:
    """Output of a container."""

    def __init__(
        self,
        streams: ShimStreams,
        number: int,
        fd: int,
        terminal: bool,
        ended: "Callable[[], None] | None",
    ) -> None:
        """Use `Streams.source`."""
        self._streams, self.number, self._fd = streams, number, fd
        self._terminal, self._ended = terminal, ended
        self._window = WINDOW
        self._begun = self._deaf = self._over = False
        self._wanted = True
        self._kept: deque[bytes] = deque()  # sent, and not known to be written onwards
        self._acknowledged = 0
        os.set_blocking(fd, False)

    @property
    def is_over(self) -> bool:
        """Whether its end was told."""
        return self._over

    def begin(self) -> None:
        """Read from now on."""
        self._begun = True
        self._watch()

    def credit(self, count: int) -> None:
        """Be allowed to send more: so much was written onwards."""
        self._window += count
        self._forget(count)
        self._watch()

    def _forget(self, count: int) -> None:
        self._acknowledged += count
        while count and self._kept:
            first = self._kept.popleft()
            if count < len(first):
                self._kept.appendleft(first[count:])
                return
            count -= len(first)

    def resume(self, written: int) -> None:
        """Send bytes again that were not written onwards."""
        more = written - self._acknowledged
        if more > 0:
            self._window += more
            self._forget(more)
        if not self._deaf:
            for piece in self._kept:
                self._streams.link.send(DATA, self.number, piece)
        if self._over:
            self._streams.link.send(END, self.number)
        self._watch()

    def let_go(self) -> None:
        """Forget it as soon as it has ended: nobody will ask for it again."""
        self._kept.clear()
        self._wanted = False
        if self._over:
            self._streams.forget_source(self.number)

    def closed(self) -> None:
        """Send no more: nobody reads it. A terminal has to be read, or its programs stop."""
        if self._over:
            return
        self._kept.clear()
        if self._terminal:
            self._deaf = True
            self._watch()
        else:
            self._deaf = True
            self._end()

    def close(self) -> None:
        """End without a word."""
        self._stop()
        self._streams.forget_source(self.number)

    def _stop(self) -> None:
        if self._fd >= 0:
            self._streams.loop.forget(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self._terminal:
            self._streams.close_sink(self.number)

    def _watch(self) -> None:
        if self._fd < 0 or not self._begun:
            return
        link = self._streams.link
        if not self._deaf and link.is_long:
            self._streams.loop.forget(self._fd)
            link.when_short(self._watch)
        elif self._deaf or self._window > 0:
            self._streams.loop.watch(self._fd, READ, self._readable)
        else:  # not with no events: the end of the writers would be told again and again
            self._streams.loop.forget(self._fd)

    def _readable(self, _events: int) -> None:
        if self._ended is None:
            self._take()
        else:
            self._streams.link.together(self._take_with_end)

    def _take_with_end(self) -> None:
        """Read twice if the first gets all: a server that answers and closes has done both."""
        if self._take():
            self._take()

    def _take(self) -> bool:
        """Read once; tell whether something was there, but less than that could get."""
        most = PIECE if self._deaf else min(PIECE, self._window)
        try:
            data = os.read(self._fd, most)
        except BlockingIOError:
            return False
        except OSError as error:
            if self._ended is not None:
                self._streams.link.send(CLOSED, self.number)
            elif error.errno != errno.EIO:  # a terminal that no process has open
                raise
            data = b""
        if not data:
            self._end()
            return False
        if self._deaf:
            return False
        self._window -= len(data)
        if self._wanted:
            self._kept.append(data)
        self._streams.link.send(DATA, self.number, data)
        if self._window <= 0 or self._streams.link.is_long:
            self._watch()
            return False
        return len(data) < most

    def _end(self) -> None:
        """Tell the end; unacknowledged bytes may have to be sent again (`resume`)."""
        self._over = True
        self._stop()
        if not self._wanted:
            self._streams.forget_source(self.number)
        self._streams.link.send(END, self.number)
        if self._ended is not None:
            self._ended()


class InputStream:
    """Input of a container."""

    def __init__(
        self,
        streams: ShimStreams,
        number: int,
        fd: int,
        closed: "Callable[[], None] | None" = None,
    ) -> None:
        """Use `Streams.sink`."""
        self._streams, self._number, self._fd = streams, number, -1
        self._closed = closed
        self._pending = bytearray()
        self._taken = self._written = 0
        self._ends = self._terminal = False
        if fd >= 0:
            self._set(fd)

    def open(self, fd: int, terminal: bool = True) -> None:
        """Write to this terminal, or this socket, which is there now."""
        self._terminal = terminal
        self._set(fd)
        self._flush()

    def _set(self, fd: int) -> None:
        self._fd = fd
        os.set_blocking(fd, False)
        self._watch()

    def take(self, data: memoryview, end: bool) -> None:
        """Write this, and close after it if it is the end.

        Raises:
            BrokenFrame: It is more than the window allows.
        """
        if len(self._pending) + len(data) > WINDOW:
            raise BrokenFrame(f"stream {self._number}: more than its window")
        self._ends = self._ends or end
        self._taken += len(data)
        if not self._pending:
            data = data[self._write(data) :]
        self._pending += data
        self._settle()

    def resume(self) -> "tuple[int, int]":
        """Return how many bytes have arrived, and how many more may: credit may have been lost."""
        self._written = 0
        return self._taken, WINDOW - len(self._pending)

    def close(self) -> None:
        """End without a word."""
        if self._fd >= 0:
            self._streams.loop.forget(self._fd)
            os.close(self._fd)
            self._fd = -1
            if self._closed is not None:
                self._closed()
        self._streams.forget_sink(self._number)

    def _write(self, data: memoryview) -> int:
        """Write what fits, and return how much."""
        if self._fd < 0 or not data:
            return 0
        try:
            written = os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError:  # EPIPE; EIO of a terminal
            self._gone()
            return len(data)
        self._written += written
        if self._written >= _TELL:
            self._streams.link.send(CREDIT, self._number, CREDIT_BYTES.pack(self._written))
            self._written = 0
        return written

    def _flush(self) -> None:
        while self._pending:
            with memoryview(self._pending) as waiting:
                written = self._write(waiting)
            if not written:
                break
            del self._pending[:written]
        self._settle()

    def _settle(self) -> None:
        if self._fd < 0:
            return
        if self._ends and not self._pending and not self._terminal:
            self.close()  # a terminal has no end of file but the key
        else:
            self._watch()

    def _watch(self) -> None:
        if self._pending:
            self._streams.loop.watch(self._fd, WRITE, self._writable)
        elif self._terminal:  # its other direction notices the end
            self._streams.loop.forget(self._fd)
        else:
            self._streams.loop.watch(self._fd, 0, self._writable)

    def _writable(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        else:
            self._gone()

    def _gone(self) -> None:
        self.close()
        self._streams.link.send(CLOSED, self._number)


def _check(number: object, streams: "Container[object]") -> None:
    if not isinstance(number, int) or not 0 <= number < 1 << 32:
        raise ValueError(f"no stream has the number {number!r}")
    if number in streams:
        raise ValueError(f"stream {number} exists already")
