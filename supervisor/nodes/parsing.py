"""Frames of a shim, found in bytes as they come (`supervisor.shim.frames`).

Payloads of DATA are passed on at once, from the buffer into which they were read: a frame of
256 KiB is neither collected nor copied.
"""

from collections.abc import Callable

from scrun.supervisor.shim.frames import CALL, DATA, HEADER, LINE, LONGEST, BrokenFrame

Dispatch = Callable[[int, int, memoryview], None]
"""Takes a frame: kind, stream and payload, which is valid until it returns. DATA may come in
parts, and one without a payload is left out.

It may raise BrokenFrame.
"""


class Frames:
    """Takes bytes as they come, and hands frames on."""

    def __init__(self, dispatch: Dispatch) -> None:
        """Begin with nothing.

        Args:
            dispatch: What takes the frames.
        """
        self._dispatch = dispatch
        self._rest = bytearray()  # of a frame that is not whole
        self._needs = HEADER.size  # bytes until that is
        self._header: tuple[int, int] | None = None  # of that frame
        self._data = 0  # bytes to come of a frame of DATA
        self._stream = 0

    def feed(self, data: memoryview) -> None:
        """Take bytes.

        Raises:
            BrokenFrame: They are no frame.
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
            if not self._rest and count == self._needs:
                part = data[at : at + count]
            else:
                self._rest += data[at : at + count]
                part = memoryview(self._rest)
            at += count
            self._needs -= count
            if not self._needs:
                self._rest = bytearray()
                self._whole(part)

    def _whole(self, part: memoryview) -> None:
        """Take a whole header, or the whole payload after one."""
        self._needs = HEADER.size
        if self._header is not None:
            kind, stream = self._header
            self._header = None
            if kind != LINE:
                self._dispatch(kind, stream, part)
            return
        kind, stream, length = HEADER.unpack(part)
        if not CALL <= kind <= LINE or length > LONGEST:
            raise BrokenFrame(f"what it sends is no frame: kind {kind}, {length} bytes")
        if kind == DATA:
            self._stream, self._data = stream, length
        elif length:
            self._header, self._needs = (kind, stream), length
        else:
            self._dispatch(kind, stream, part[:0])
