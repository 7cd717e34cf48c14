"""A regular file of a caller's, which may be on a file system that hangs."""

import errno
import os
from typing import Protocol, Self

import trio

from scrun.supervisor.core.threads import in_thread


class Gone(Exception):
    """Nobody reads any more, or nothing can be written; the reason, or "" for the usual one."""


def gone(error: OSError) -> Gone:
    """Return the error as the end of a reader."""
    return Gone("" if error.errno in (errno.EPIPE, errno.ECONNRESET) else str(error.strerror))


class Offsets(Protocol):
    """Notes reads or writes for a successor (`supervisor.nodes.exact`)."""

    def begin(self, count: int, offset: int) -> None:
        """Note that so many bytes are about to be put."""
        ...

    def put(self, count: int) -> None:
        """Note that so many were put."""
        ...


class RegularFile:
    """A regular file, read and written in threads; a block that is left abandons one that hangs.

    The offset stays one for all who share the file.
    """

    pending = False

    def __init__(self, fd: int) -> None:
        """Take a descriptor over; it is closed when the block is left."""
        self._kept = _SharedDescriptor(fd)
        self._abandoned = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it; if a thread hangs in it, that does."""
        if not self._abandoned:
            self._kept.close()

    async def read_into(self, room: memoryview, offsets: Offsets | None = None) -> int:
        """Read; return the number of bytes, 0 at the end of file or after an error."""
        try:
            return await in_thread(_read, self._kept, room, offsets, abandon=True)
        except OSError:  # a directory, a broken disk
            return 0
        except trio.Cancelled:
            self._abandoned = True
            raise

    @property
    def fd(self) -> int:
        return self._kept.fd

    @property
    def offset(self) -> int:
        """Where the next byte goes."""
        return os.lseek(self._kept.fd, 0, os.SEEK_CUR)

    def try_write(self, data: memoryview) -> int:
        """Write nothing: that may take long."""
        return 0

    async def flush(self) -> None:
        """Do nothing: nothing waits."""

    async def write(self, data: memoryview, offsets: Offsets | None = None) -> int:
        """Write at least a part, and return the number of bytes.

        Raises:
            Gone: It cannot be written.
        """
        try:
            return await in_thread(_write, self._kept, data, offsets, abandon=True)
        except OSError as error:
            raise gone(error) from None
        except trio.Cancelled:
            self._abandoned = True
            raise


class _SharedDescriptor:
    """A descriptor that is closed at the latest when no thread needs it any more."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def _read(kept: _SharedDescriptor, room: memoryview, offsets: Offsets | None) -> int:
    if offsets is not None:
        offsets.begin(len(room), os.lseek(kept.fd, 0, os.SEEK_CUR))
    read = os.readv(kept.fd, [room])
    if offsets is not None:
        offsets.put(read)
    return read


def _write(kept: _SharedDescriptor, data: memoryview, offsets: Offsets | None) -> int:
    if offsets is not None:
        offsets.begin(len(data), os.lseek(kept.fd, 0, os.SEEK_CUR))
    written = os.write(kept.fd, data)
    if offsets is not None:
        offsets.put(written)
    return written
