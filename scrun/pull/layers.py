"""Reads the layers of an image: as they are, or compressed by gzip or zstd.

What a layer is compressed by is seen from its beginning, as engines do: media types are wrong at
times. gzip is read here, by as many members as there are. zstd is left to its program: Python has
it from 3.14 on only, and a package of PyPI would be one more for everybody; such layers are few.
"""

import contextlib
import hashlib
import os
import queue
import threading
import zlib
from collections.abc import Callable, Iterator

from scrun.core.errors import ImageError
from scrun.core.inside import DEPTH
from scrun.pull.programs import PATIENCE, REMEDY, reading
from scrun.pull.tar import Archive, DamagedArchive

ENTRIES = 4_000_000
"""The most files and directories of an image."""

_NAMES = 512 << 20  # they are in memory
_GZIP, _ZSTD, _SKIPPED = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x2a\x4d\x18"
_PIECE = 1 << 16  # of gzip
_PIECES = 1 << 20
_AHEAD = 8  # pieces that wait for their turn


class Bounds:
    """What an image may still have: it is looked at while the image is unpacked.

    A layer of a megabyte can unpack to a gigabyte of zeros, or to millions of empty files. What is
    too much raises ImageError.
    """

    def __init__(self, size: int, entries: int = ENTRIES, names: int = _NAMES) -> None:
        """Begin; `size` (0: any) has the holes of files, `names` are bytes of names."""
        self._size, self._entries, self._names = size, entries, names
        self._left, self._entries_left, self._names_left = size, entries, names

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0 and self._size:
            raise ImageError(f"unpacks to more than {self._size >> 20} MiB: {REMEDY}")

    def folder(self) -> None:
        """Count a directory that no entry describes: a name of one byte can make one."""
        self.entry(b"", 0)

    def entry(self, name: bytes, depth: int) -> None:
        """Count an entry; `depth` is the number of directories in it."""
        self._entries_left -= 1
        self._names_left -= len(name)
        if self._entries_left < 0:
            raise ImageError(f"has more than {self._entries} files")
        if self._names_left < 0:
            raise ImageError(f"has more than {self._names >> 20} MiB of names of files")
        if depth > DEPTH:
            begin = os.fsdecode(name[:40])
            raise ImageError(f"{begin!r}…: is below more than {DEPTH} directories")


@contextlib.contextmanager
def layer(
    blob: int, diff_id: str, bounds: Bounds, progress: Callable[[int], None] = lambda at: None
) -> Iterator[Archive]:
    """Read a layer; at the end of the block, all of it is what the image's configuration says.

    The open `blob` stays open. `diff_id` is the archive's digest. `progress` is called for each
    piece, with the bytes of the blob that were read.

    Raises:
        ImageError: The layer is damaged, another one, or has more than it may.
    """
    with contextlib.closing(_Ahead()) as ahead, _unpacked(blob) as pieces:
        ahead.begin(pieces)

        def following() -> bytes:
            piece = ahead.next()
            bounds.take(len(piece))
            progress(os.lseek(blob, 0, os.SEEK_CUR))
            return piece

        stream = _Stream(following)
        yield Archive(stream.read, stream.skip)
        while stream.read(_PIECES):
            pass
        if (digest := ahead.digest) != diff_id:
            raise ImageError(f"is not what the image says: {digest}, not {diff_id}")


@contextlib.contextmanager
def _unpacked(blob: int) -> Iterator[Iterator[bytes]]:
    begin = os.pread(blob, 4, 0)
    os.lseek(blob, 0, os.SEEK_SET)
    if begin.startswith(_GZIP):
        yield _of_gzip(blob)
    elif begin == _ZSTD or (begin[1:] == _SKIPPED and begin[0] >> 4 == 5):
        with reading("zstd", "-dcq", stdin=blob, what="zstd cannot unpack it") as pipe:
            yield iter(lambda: pipe.read(_PIECES), b"")
    else:
        yield iter(lambda: os.read(blob, _PIECES), b"")


def _of_gzip(blob: int) -> Iterator[bytes]:
    unpack = zlib.decompressobj(wbits=31)
    try:
        for piece in iter(lambda: os.read(blob, _PIECE), b""):
            rest = piece
            while rest:
                if unpack.eof:
                    if not rest.strip(b"\0"):  # some round up the size
                        break
                    unpack = zlib.decompressobj(wbits=31)
                if made := unpack.decompress(rest, _PIECES):
                    yield made
                rest = unpack.unused_data if unpack.eof else unpack.unconsumed_tail
    except zlib.error as error:
        raise DamagedArchive(f"gzip: {error}") from error
    if not unpack.eof:
        raise DamagedArchive("gzip: it ends too early")


class _Stream:
    def __init__(self, following: Callable[[], bytes]) -> None:
        self._following = following
        self._piece, self._at = b"", 0

    def _next(self) -> bool:
        self._piece, self._at = self._following(), 0
        return bool(self._piece)

    def read(self, count: int) -> bytes:
        """Return so many bytes; fewer only at the end."""
        found = self._piece[self._at : self._at + count]
        self._at += len(found)
        if len(found) == count:
            return found
        parts, missing = [found], count - len(found)
        while missing and self._next():
            part = self._piece[:missing]
            self._at = len(part)
            missing -= len(part)
            parts.append(part)
        return b"".join(parts)

    def skip(self, count: int) -> None:
        """Leave so many bytes out, or what there is."""
        while count:
            step = min(count, len(self._piece) - self._at)
            self._at += step
            count -= step
            if count and not self._next():
                return


class _Ahead:
    """A thread that unpacks and digests the next pieces while the last ones are written."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[bytes | BaseException] = queue.Queue(_AHEAD)
        self._over = False
        self._thread: threading.Thread | None = None
        self._sha = hashlib.sha256()

    @property
    def digest(self) -> str:
        """The digest of all pieces, when there are no more."""
        return f"sha256:{self._sha.hexdigest()}"

    def begin(self, pieces: Iterator[bytes]) -> None:
        self._thread = threading.Thread(target=self._fill, args=(pieces,), daemon=True)
        self._thread.start()

    def _fill(self, pieces: Iterator[bytes]) -> None:
        try:
            for piece in pieces:
                if self._over:
                    break
                self._sha.update(piece)
                self._waiting.put(piece)
            self._waiting.put(b"")
        except BaseException as error:  # raised again where it is waited for
            self._waiting.put(error)

    def next(self) -> bytes:
        if self._over:
            return b""
        try:
            piece = self._waiting.get(timeout=PATIENCE)
        except queue.Empty:
            raise ImageError(f"nothing of it arrived for {PATIENCE:.0f} seconds") from None
        if isinstance(piece, BaseException):
            self._over = True
            raise piece
        self._over = not piece
        return piece

    def close(self) -> None:
        """Wait for its end; nothing that it reads from may wait for ever."""
        ended, self._over = self._over, True
        while not ended and self._thread:
            piece = self._waiting.get()
            ended = not piece or isinstance(piece, BaseException)
        if self._thread:
            self._thread.join()
