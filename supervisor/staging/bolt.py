"""Reads bbolt's files, in which containerd keeps its records.

Only what containerd's snapshotters need: buckets within buckets, of a file that fits into memory.
containerd may write it at the same time, so a caller reads the file until it stays the same:
what is on disk is complete at each moment. Pure.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER = struct.Struct("<QHHI")  # id, flags, count, overflow
_META = struct.Struct("<IIIIQQQQQQ")
_MAGIC, _VERSION = 0xED0CDAED, 2
_BRANCH, _LEAF = 1, 2
_BRANCH_ENTRY = struct.Struct("<IIQ")  # position, length of the key, page
_LEAF_ENTRY = struct.Struct("<IIII")  # flags, position, lengths of key and value
_BUCKET = struct.Struct("<QQ")  # page of its root, or 0 if that follows; sequence
_IS_BUCKET = 1
_DEEPEST = 64
_MOST = 1 << 20  # pages that are looked at: damaged ones may lead in circles
_FNV, _PRIME, _MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1


class DamagedDatabase(ValueError):
    """The file is not bbolt's, or of another version."""


class Bucket:
    """A bucket, by its value in the one above."""

    def __init__(self, file: Bolt, root: int, inline: bytes) -> None:
        self._file = file
        self._root = root
        self._inline = inline

    def buckets(self) -> Iterator[tuple[bytes, Bucket]]:
        """Yield the buckets in it, by their keys."""
        for key, value, flags in self._entries():
            if flags & _IS_BUCKET:
                yield key, self._file.bucket(value)

    def bucket(self, key: bytes) -> Bucket:
        """Return one of them; raise DamagedDatabase if it is missing."""
        for name, bucket in self.buckets():
            if name == key:
                return bucket
        raise DamagedDatabase(f"has no bucket {key!a}")

    def values(self) -> dict[bytes, bytes]:
        """Return the values in it."""
        return {key: value for key, value, flags in self._entries() if not flags & _IS_BUCKET}

    def _entries(self) -> Iterator[tuple[bytes, bytes, int]]:
        if not self._root:
            yield from self._file.entries(self._inline, _DEEPEST)
        else:
            yield from self._file.entries(self._file.page(self._root), _DEEPEST)


class Bolt:
    """The content of a file.

    Attributes:
        top: The bucket with all others.
    """

    def __init__(self, content: bytes) -> None:
        """Raise DamagedDatabase for a file that cannot be understood."""
        self._content = memoryview(content)
        self._size = 0
        self._left = _MOST
        metas = []
        for offset in self._places():
            try:
                meta = _META.unpack_from(content, offset + _HEADER.size)
            except struct.error:
                continue
            before = content[offset + _HEADER.size :][: _META.size - 8]
            if meta[:2] == (_MAGIC, _VERSION) and meta[9] == _checksum(before):
                metas.append(meta)
        if not metas:
            raise DamagedDatabase("is not bbolt's")
        latest = max(metas, key=lambda meta: int(meta[8]))
        self._size = int(latest[2])
        self.top = Bucket(self, int(latest[4]), b"")

    def _places(self) -> list[int]:
        """Return where the two first pages may begin."""
        return [0, *(1 << power for power in range(10, 17))]

    def page(self, number: int) -> bytes:
        """Return a page, with those that belong to it."""
        self._left -= 1
        if self._left < 0:
            raise DamagedDatabase("leads in circles")
        begin = number * self._size
        try:
            overflow = _HEADER.unpack_from(self._content, begin)[3]
        except (struct.error, OverflowError) as error:
            raise DamagedDatabase("ends too early") from error
        return bytes(self._content[begin : begin + (overflow + 1) * self._size])

    def bucket(self, value: bytes) -> Bucket:
        """Return a bucket by its value."""
        try:
            root, _ = _BUCKET.unpack_from(value)
        except struct.error as error:
            raise DamagedDatabase("has half a bucket") from error
        return Bucket(self, root, value[_BUCKET.size :])

    def entries(self, page: bytes, depth: int) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield keys, values and flags of a page and those below it."""
        if not depth:
            raise DamagedDatabase("is too deep")
        try:
            _, kind, count, _ = _HEADER.unpack_from(page)
            for index in range(count):
                at = _HEADER.size + index * _LEAF_ENTRY.size
                if kind & _BRANCH:
                    below = _BRANCH_ENTRY.unpack_from(page, at)[2]
                    yield from self.entries(self.page(below), depth - 1)
                elif kind & _LEAF:
                    flags, position, key, value = _LEAF_ENTRY.unpack_from(page, at)
                    begin = at + position
                    yield page[begin : begin + key], page[begin + key :][:value], flags
                else:
                    raise DamagedDatabase("has a page of another kind")
        except struct.error as error:
            raise DamagedDatabase("ends too early") from error


def _checksum(content: bytes) -> int:
    """Return FNV-1a."""
    found = _FNV
    for byte in content:
        found = ((found ^ byte) * _PRIME) & _MASK
    return found
