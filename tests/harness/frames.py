"""Frames, as the end takes them that a test plays."""

from collections.abc import Iterator

from scrun.supervisor.wire.seals import PLAIN, Plain, Reader

Frame = tuple[int, int, bytes]


class WholeFrames:
    """Takes bytes as they arrive; DATA is whole, if it is not asked for in parts."""

    def __init__(self, seal: Plain = PLAIN, *, in_parts: bool = False) -> None:
        self._reader = Reader(seal, in_parts=in_parts)

    def feed(self, data: bytes) -> Iterator[Frame]:
        for kind, stream, payload in self._reader.feed(memoryview(data)):
            yield kind, stream, bytes(payload)


def framed(seal: Plain, kind: int, stream: int, payload: bytes) -> bytes:
    return seal.head(kind, stream, len(payload)) + payload + seal.tail(kind, payload)
