"""How frames look, and how they are found in bytes, for both ends.

Sealed, nobody on the way changes, leaves out, repeats or reorders one unnoticed (see the package's
docstring, Seals). Pure.
"""

import struct
from _operator import _compare_digest as compare_digest  # hmac brings OpenSSL

from .frames import CALL, DATA, HEADER, LONGEST, QUIET, BrokenFrame, hash_function, proof

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from .gmac import Gmac

TAG = 16
"""The bytes of a tag."""

REST = 15
"""The rest of a frame may take so many times as long as the silence before QUIET."""

NO_REST = "the rest of a frame did not arrive"

_NUMBER = struct.Struct(">Q")
_DIGEST = 32
_LARGE = 1 << 14  # bytes of a payload, from which on GMAC takes less time than BLAKE2b
_MUCH = 1 << 22  # bytes in such payloads, from which on OpenSSL is worth loading
_FEW, _MANY = 1 << 12, 1 << 19  # bytes that are read at once: an idle connection needs few


class Plain:
    """How frames look over srun, whose streams are Slurm's to protect.

    Attributes:
        size: The bytes of a frame before its payload.
    """

    size = HEADER.size

    def head(self, kind: int, stream: int, length: int) -> bytes:
        """Return what goes before the payload of the next frame."""
        return HEADER.pack(kind, stream, length)

    def tail(self, kind: int, payload: "bytes | memoryview") -> bytes:
        """Return what goes after the payload of that frame."""
        return b""

    def opened(self, head: "bytes | bytearray | memoryview") -> "tuple[int, int, int]":
        """Return kind, stream and length of the next frame; BrokenFrame if it is not one."""
        kind, stream, length = HEADER.unpack_from(head)
        if not CALL <= kind <= QUIET:
            raise BrokenFrame(
                f"received something that is not a frame: kind {kind}, {length} bytes"
            )
        return kind, stream, length

    def tail_size(self, kind: int, length: int) -> int:
        """Return how many bytes follow the payload of that frame."""
        return 0

    def check(self, payload: memoryview, tail: memoryview) -> None:
        """Compare the payload of that frame with what follows it; BrokenFrame if that differs."""

    def use_gmac(self) -> None:
        """Seal large payloads by GMAC from now on: both processors have instructions for it."""


PLAIN = Plain()


class Sealed(Plain):
    """The frames of one direction of a connection; one object at each end."""

    size = HEADER.size + TAG

    def __init__(self, key: bytes, streams: bool) -> None:
        """`key` is of this direction and this connection alone.

        `streams` says whether the payloads of DATA have tags as well.
        """
        blake2b = blake()
        self._heads = blake2b(key=key, digest_size=TAG, person=b"head")
        self._payloads = blake2b(key=key, digest_size=TAG, person=b"payload")
        self._streams = streams
        self._number = 0
        self._key = key
        self._uses_gmac = False
        self._in_large = 0  # bytes, counted by both ends
        self._gmac: Gmac | None = None

    def use_gmac(self) -> None:
        self._uses_gmac = True

    def head(self, kind: int, stream: int, length: int) -> bytes:
        head = HEADER.pack(kind, stream, length)
        self._number += 1
        return head + self._tag(self._heads, head)

    def _tag(self, keyed: "Any", content: "bytes | memoryview") -> bytes:  # noqa: ANN401 (a C type)
        state = keyed.copy()
        state.update(_NUMBER.pack(self._number))
        state.update(content)
        tag: bytes = state.digest()
        return tag

    def _tag_of_payload(self, payload: "bytes | memoryview") -> bytes:
        if len(payload) < _LARGE:
            return self._tag(self._payloads, payload)
        self._in_large += len(payload)
        if not self._uses_gmac or self._in_large <= _MUCH:
            return self._tag(self._payloads, payload)
        if self._gmac is None:
            from .gmac import KEY, Gmac

            own = blake()(key=self._key, digest_size=KEY, person=b"gmac")
            self._gmac = Gmac(own.digest())
        return self._gmac.tag(self._number, payload)

    def tail(self, kind: int, payload: "bytes | memoryview") -> bytes:
        return self._tag_of_payload(payload) if self.tail_size(kind, len(payload)) else b""

    def opened(self, head: "bytes | bytearray | memoryview") -> "tuple[int, int, int]":
        self._number += 1
        whole = bytes(head)
        if not compare_digest(self._tag(self._heads, whole[: HEADER.size]), whole[HEADER.size :]):
            raise self._broken()
        return super().opened(whole)

    def tail_size(self, kind: int, length: int) -> int:
        return TAG if length and (self._streams or kind != DATA) else 0

    def check(self, payload: memoryview, tail: memoryview) -> None:
        if tail and not compare_digest(self._tag_of_payload(payload), tail):
            raise self._broken()

    def _broken(self) -> BrokenFrame:
        return BrokenFrame(
            f"frame {self._number} was changed, left out, repeated or put elsewhere on its way"
        )


class Reader:
    """Finds frames in bytes as they arrive.

    A payload is passed on from the memory into which it was read, which grows with what arrives.
    """

    def __init__(
        self,
        seal: Plain = PLAIN,
        longest: "Callable[[int], int]" = lambda _: LONGEST,
        in_parts: bool = False,
    ) -> None:
        """`longest` returns the most bytes of the payload of a frame of some kind, at this moment.

        `in_parts` passes DATA without a seal on at once, before all of it is there.
        """
        self._seal, self._longest, self._in_parts = seal, longest, in_parts
        self._room = memoryview(bytearray(_FEW))
        self._begin = self._end = 0  # of what is not passed on yet
        self._needs = seal.size  # bytes of the next header, or payload with its tag
        self._header: tuple[int, int, int] | None = None  # of that payload
        self._data = 0  # missing bytes of a frame of DATA
        self._stream = 0

    def seal(self, seal: Plain) -> None:
        """Set the seal of the frames after the current one."""
        self._seal, self._needs = seal, seal.size

    @property
    def is_within(self) -> bool:
        """Whether the rest of a frame is missing."""
        return bool(self._begin < self._end or self._header or self._data)

    def room(self) -> memoryview:
        """Return where the next bytes go; `took` follows."""
        size = len(self._room)
        is_full = self._end == size
        if is_full or (self._begin and self._begin + self._needs > size):
            rest = self._room[self._begin : self._end]
            if is_full and (size < _MANY or len(rest) == size):
                self._room = memoryview(bytearray(2 * size))
            self._room[: len(rest)] = rest
            self._begin, self._end = 0, len(rest)
        return self._room[self._end :]

    def feed(self, data: memoryview) -> "Iterator[tuple[int, int, memoryview]]":
        """Take bytes that were read elsewhere; see `took`."""
        while data:
            room = self.room()
            count = min(len(room), len(data))
            room[:count], data = data[:count], data[count:]
            yield from self.took(count)

    def took(self, count: int) -> "Iterator[tuple[int, int, memoryview]]":
        """Yield frames of what is there: kind, stream, and payload, which is valid until the next.

        DATA without a payload is left out. `count` bytes are in `room` now. Raises BrokenFrame if
        they are not a frame, or were changed on their way.
        """
        self._end += count
        while self._begin < self._end:
            left = self._end - self._begin
            count = min(self._data, left) or self._needs
            if count > left:
                return
            part = self._room[self._begin : self._begin + count]
            self._begin += count
            if self._data:
                self._data -= count
                yield DATA, self._stream, part
                continue
            found = self._whole(part)
            if found is not None:
                yield found
        if len(self._room) > _MANY:
            self._room = memoryview(bytearray(_FEW))
            self._begin = self._end = 0
        elif self._end < len(self._room):
            self._begin = self._end = 0

    def _whole(self, part: memoryview) -> "tuple[int, int, memoryview] | None":
        """Take a whole header, or the whole payload after one with its seal."""
        seal = self._seal
        self._needs = seal.size
        if self._header is not None:
            kind, stream, length = self._header
            self._header = None
            seal.check(part[:length], part[length:])
            return kind, stream, part[:length]
        kind, stream, length = seal.opened(part)
        if length > self._longest(kind):
            raise BrokenFrame(f"it sent a frame that is too long: kind {kind}, {length} bytes")
        tail = seal.tail_size(kind, length)
        if kind == DATA and self._in_parts and not tail:
            self._stream, self._data = stream, length
        elif length:
            self._header, self._needs = (kind, stream, length), length + tail
        elif kind != DATA:
            return kind, stream, part[:0]
        return None


def sealed(secret: bytes, both: bytes, streams: bool) -> "tuple[Sealed, Sealed]":
    """Return the seals of the shim's frames, and of the supervisor's.

    `both` are the random bytes of the proof, which differ for each connection. Raises OSError if
    this Python has no BLAKE2.
    """
    shims, supervisors = (
        Sealed(proof(secret, who + b"'s frames", both), streams)
        for who in (b"shim", b"supervisor")
    )
    return shims, supervisors


def digest(content: "bytes | memoryview" = b"") -> "Any":  # noqa: ANN401 (a C type)
    """Return BLAKE2b with 32 bytes, to which `update` adds; OSError without BLAKE2."""
    return blake()(content, digest_size=_DIGEST)


def blake() -> "Any":  # noqa: ANN401 (a C type)
    """Return BLAKE2b; see `hash_function`."""
    return hash_function("blake2b", "_blake2")
