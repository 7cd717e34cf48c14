"""Files that grow to a limit: a container's output, and what is said about it.

There are two files of half the limit each, the older one with `.1` at its end; when the younger is
full the older goes. They lie in the root directory, which may be in memory and is shared by all
containers of the user, so on a full file system the older one goes at once, and the limit of this
file is halved: others need the space for their records.
"""

import contextlib
import os
import stat

LOST = ".lost"
"""Ends the name of a file that says how many bytes are gone."""

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_LEAST = 64 << 10


class LimitedFile:
    """A file that is only appended to.

    Attributes:
        path: Its path.
        generation: How often a new one was begun.
        lost: How many bytes of it are gone.
    """

    def __init__(self, path: str, limit: int) -> None:
        """Open it.

        Args:
            path: Its path; it goes on where there is one.
            limit: How many bytes it may take.

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

    @property
    def place(self) -> int:
        """Where the next byte goes, those that are gone counted."""
        return self.lost + self._older + self._size

    def write(self, data: bytes | bytearray) -> OSError | None:
        """Append something; never wait, and never fail.

        Returns:
            Why some of it, or of what was there, was lost for want of space; else None.
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
        self._lose(len(data))
        return error

    def close(self) -> None:
        """Close it; what is written later is dropped."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _turn(self) -> None:
        """Begin a new file; the one before the last is gone."""
        try:
            os.rename(self.path, self.path + ".1")
            fd = os.open(self.path, _FLAGS, 0o600)
        except OSError:  # no descriptor is left, or somebody has removed the directory
            return
        os.close(self._fd)
        self._fd = fd
        self.generation += 1
        gone, self._older, self._size = self._older, self._size, 0
        self._lose(gone)

    def _make_space(self) -> None:
        self._half = max(min(self._half, self._size + self._older) // 2, _LEAST)
        gone, self._older = self._older, 0
        with contextlib.suppress(OSError):
            os.unlink(self.path + ".1")
        if not gone:
            gone, self._size = self._size, 0
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
        self._lose(gone)

    def _lose(self, count: int) -> None:
        if count:
            self.lost += count
            with contextlib.suppress(OSError):
                fd = os.open(self.path + LOST, _FLAGS & ~os.O_APPEND | os.O_TRUNC, 0o600)
                try:
                    os.write(fd, b"%d" % self.lost)
                finally:
                    os.close(fd)
