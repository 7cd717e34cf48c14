"""Bounds of what an image unpacks to, looked at while it is unpacked.

A layer of a megabyte can unpack to a gigabyte of zeros, or to millions of empty files.
"""

import os

from scrun.core.errors import ImageError
from scrun.core.inside import DEPTH

REMEDY = "raise [images] unpacked_size"

ENTRIES = 4_000_000
"""The most files and directories of an image."""

_NAMES = 512 << 20  # they are in memory


class Bounds:
    """What an image may still have."""

    def __init__(self, size: int, entries: int = ENTRIES, names: int = _NAMES) -> None:
        """Begin.

        Args:
            size: The most bytes of all layers, unpacked, holes of files included; 0: any number.
            entries: The most entries of all layers.
            names: The most bytes of their names.
        """
        self._size, self._entries, self._names = size, entries, names
        self._left, self._entries_left, self._names_left = size, entries, names

    def take(self, count: int) -> None:
        """Count bytes.

        Raises:
            ImageError: They are too many.
        """
        self._left -= count
        if self._left < 0 and self._size:
            raise ImageError(f"unpacks to more than {self._size >> 20} MiB: {REMEDY}")

    def folder(self) -> None:
        """Count a directory that no entry describes: a name of one byte can make one.

        Raises:
            ImageError: They are too many.
        """
        self.entry(b"", 0)

    def entry(self, name: bytes, depth: int) -> None:
        """Count an entry.

        Args:
            name: Its path.
            depth: How many directories that has.

        Raises:
            ImageError: They are too many, or it is too deep.
        """
        self._entries_left -= 1
        self._names_left -= len(name)
        if self._entries_left < 0:
            raise ImageError(f"has more than {self._entries} files")
        if self._names_left < 0:
            raise ImageError(f"has more than {self._names >> 20} MiB of names of files")
        if depth > DEPTH:
            begin = os.fsdecode(name[:40])
            raise ImageError(f"{begin!r}…: is below more than {DEPTH} directories")
