"""Frames of a shim, found in bytes as they come (`supervisor.shim.frames`).

Payloads are passed on from the buffer into which they were read, if all of them is there. Those of
DATA that have no seal are passed on at once, in parts: a frame of 256 KiB is neither collected nor
copied.
"""

from collections.abc import Callable

from scrun.supervisor.shim.frames import DATA, LINE, LONGEST, QUIET, BrokenFrame
from scrun.supervisor.shim.seals import PLAIN, Plain

Dispatch = Callable[[int, int, memoryview], None]
"""Takes a frame: kind, stream and payload, which is valid until it returns. DATA may come in
parts, and one without a payload is left out.

It may raise BrokenFrame.
"""

Longest = Callable[[int], int]
"""Returns the most bytes of the payload of a frame of some kind, at this moment."""


class Frames:
    """Takes bytes as they come, and hands frames on."""

    def __init__(
        self, dispatch: Dispatch, longest: Longest = lambda _: LONGEST, seal: Plain = PLAIN
    ) -> None:
        """Begin with nothing.

        Args:
            dispatch: What takes the frames.
            longest: What says how long they may be.
            seal: How they look.
        """
        self._dispatch, self._longest = dispatch, longest
        self._seal = seal
        self._rest = bytearray()  # of a frame that is not whole
        self._needs = seal.size  # bytes until that is
        self._header: tuple[int, int, int] | None = None  # of that frame
        self._data = 0  # bytes to come of a frame of DATA
        self._stream = 0

    def seal(self, seal: Plain) -> None:
        """Have the frames after the one that is being taken look otherwise."""
        self._seal, self._needs = seal, seal.size

    @property
    def is_within(self) -> bool:
        """Whether the rest of a frame is still to come."""
        return bool(self._rest or self._header or self._data)

    def feed(self, data: memoryview) -> None:
        """Take bytes.

        Raises:
            BrokenFrame: They are no frame, or not what was sent.
        """
        at, end = 0, len(data)
        while at < end:
            if self._data:
                part = data[at : at + self._data]
                self._data -= len(part)
                at += len(part)
                self._dispatch(DATA, self._stream, part)
                continue
            count = min(self._needs, end - at)
            part = data[at : at + count]
            at += count
            self._needs -= count
            if self._rest or self._needs:
                self._rest += part
            if not self._needs:
                whole = memoryview(self._rest) if self._rest else part
                self._rest = bytearray()
                self._whole(whole)

    def _whole(self, part: memoryview) -> None:
        """Take a whole header, or the whole payload after one with its seal."""
        seal = self._seal
        self._needs = seal.size
        if self._header is not None:
            kind, stream, length = self._header
            self._header = None
            seal.check(part[:length], part[length:])
            self._take(kind, stream, part[:length])
            return
        kind, stream, length = seal.opened(part)
        if length > self._longest(kind):
            raise BrokenFrame(f"what it sends is too long: kind {kind}, {length} bytes")
        tail = seal.tail_size(kind, length)
        if kind == DATA and not tail:
            self._stream, self._data = stream, length
        elif length:
            self._header, self._needs = (kind, stream, length), length + tail
        else:
            self._take(kind, stream, part[:0])

    def _take(self, kind: int, stream: int, payload: memoryview) -> None:
        if kind not in (LINE, QUIET):
            self._dispatch(kind, stream, payload)
