"""Files that grow to a limit: a container's output and its log.

Each consists of two files of half the limit; the older one has the suffix `.1`, and is discarded
when the newer one is full. They are in the root directory, which may be in memory and is shared by
all containers of the user. So on a full file system the older one is discarded at once, and the
limit is halved: others need the space for their records.
"""

import contextlib
import os
import stat

LOST = ".lost"
"""The suffix of a file with the number of discarded bytes."""

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_LEAST = 64 << 10


class LimitedFile:
    """A file that is only appended to.

    Attributes:
        generation: How often a new file was begun.
        lost: The number of discarded bytes.
    """

    def __init__(self, path: str, limit: int, *, again: bool = False) -> None:
        """Open it, to append.

        Args:
            limit: The most bytes that it may take.
            again: Whether to count what another process has written before.

        Raises:
            OSError: It cannot be opened.
        """
        self.path = path
        self.generation = 0
        self.lost = 0
        self._half = max(limit // 2, _LEAST)
        self._older = 0
        self._fd = os.open(path, _FLAGS, 0o600)
        status = os.fstat(self._fd)
        self._size = status.st_size
        self._is_device = not stat.S_ISREG(status.st_mode)  # /dev/null has no limit
        if again:
            self._count_before()

    def _count_before(self) -> None:
        with contextlib.suppress(OSError):
            self._older = os.stat(self.path + ".1").st_size
            self.generation = 1
        with contextlib.suppress(OSError, ValueError), open(self.path + LOST, "rb") as file:
            self.lost = int(file.read())

    @property
    def begins(self) -> int:
        """The position of the newer file's first byte, counting discarded ones."""
        return self.lost + self._older

    @property
    def offset(self) -> int:
        """The position of the next byte, counting discarded ones."""
        return self.begins + self._size

    def write(self, data: bytes | bytearray) -> OSError | None:
        """Append something, without waiting or raising an error.

        Returns:
            The error if some of it, or older content, was lost for lack of space; else None.
        """
        if self._fd < 0:
            return None
        error = None
        if not self._is_device and self._size and self._size + len(data) > self._half:
            self._turn()
        for attempt in range(2):
            try:
                while data:
                    written = os.write(self._fd, data)
                    self._size += written
                    data = data[written:]
            except OSError as reason:
                error = reason
                if self._is_device:
                    return error
                if attempt == 0:
                    self._make_space()
        self._count_lost(len(data))
        return error

    def close(self) -> None:
        """Close it; later writes are dropped."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _turn(self) -> None:
        """Begin a new file, and discard the older one."""
        try:
            os.rename(self.path, self.path + ".1")
            fd = os.open(self.path, _FLAGS, 0o600)
        except OSError:  # out of descriptors, or somebody has removed the directory
            return
        os.close(self._fd)
        self._fd = fd
        self.generation += 1
        lost, self._older, self._size = self._older, self._size, 0
        self._count_lost(lost)

    def _make_space(self) -> None:
        self._half = max(min(self._half, self._size + self._older) // 2, _LEAST)
        lost, self._older = self._older, 0
        with contextlib.suppress(OSError):
            os.unlink(self.path + ".1")
        if not lost:
            lost, self._size = self._size, 0
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
        self._count_lost(lost)

    def _count_lost(self, count: int) -> None:
        if count:
            self.lost += count
            with contextlib.suppress(OSError):
                fd = os.open(self.path + LOST, _FLAGS & ~os.O_APPEND | os.O_TRUNC, 0o600)
                try:
                    os.write(fd, b"%d" % self.lost)
                finally:
                    os.close(fd)
