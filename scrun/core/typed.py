"""JSON as instances of our classes, in any thread.

msgspec (0.22) learns about a class when it is first used. Two threads that do so at once can end
the process by a segmentation fault, so here that is done by one thread at a time.
"""

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_learns = threading.Lock()
_known: set[Any] = set()


def convert(value: object, kind: type[T], *, strict: bool = True) -> T:
    """Return a decoded document as an instance of a type, or raise, as `msgspec.convert` does."""
    _learn(kind)
    return msgspec.convert(value, kind, strict=strict)


def decode_as(content: bytes | str | memoryview, kind: type[T]) -> T:
    """Return the text of a document as an instance of a type, as `msgspec.json.decode` does."""
    _learn(kind)
    return msgspec.json.decode(content, type=kind)


def _learn(kind: Any) -> None:  # noqa: ANN401  (also `list[Ending]`)
    if kind not in _known:
        with _learns:
            msgspec.json.Decoder(kind)
            _known.add(kind)
