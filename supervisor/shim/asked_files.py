"""Parts of requests and answers of a file system (`live_files`), and files that nobody swaps."""

import errno
import os
import stat
from itertools import islice

from scrun.supervisor.wire.fuse import ATTR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

NONBLOCKING = os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
_APART, _LONG = 0x9E3779B97F4A7C15, (1 << 64) - 1
_NANO = 10**9


def padded(length: int) -> int:
    """Return the length of an entry of a directory."""
    return length + -length % 8


def name_of(body: memoryview) -> bytes:
    """Return a name, as `component`."""
    return component(bytes(body).split(b"\0")[0])


def names_of(body: memoryview) -> "tuple[bytes, bytes]":
    """Return a name, as `component`, and what follows."""
    name, other, *_ = bytes(body).split(b"\0")
    return component(name), other


def component(name: bytes) -> bytes:
    """Return a name in a directory.

    Raises:
        OSError: It is something else.
    """
    if name in (b"", b".", b"..") or b"/" in name:
        raise OSError(errno.EINVAL, "")
    return name


def open_file(name: bytes, flags: int, folder: int, mode: int = 0) -> int:
    """Open a regular file.

    Raises:
        OSError: It cannot be opened, or has become something else.
    """
    fd = os.open(name, flags | NONBLOCKING, mode, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ESTALE, "")
    return fd


def change_mode(folder: int, name: bytes, mode: int, status: os.stat_result) -> None:
    """Change the permissions of a file that is opened for that, so that no link is followed.

    Raises:
        OSError: It is a link, a device or a socket, or they cannot be changed.
    """
    kinds = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFIFO)
    if stat.S_IFMT(status.st_mode) not in kinds:
        raise OSError(errno.EOPNOTSUPP, "")
    fd = os.open(name, os.O_RDONLY | NONBLOCKING, dir_fd=folder)
    try:
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


def attributes(status: os.stat_result) -> bytes:
    """Return a `struct fuse_attr`. There is one device number for all: so others go by inode."""
    times = [
        divmod(ns, _NANO) for ns in (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
    ]
    return ATTR.pack(
        (status.st_ino ^ status.st_dev * _APART) & _LONG, status.st_size, status.st_blocks,
        *(seconds & _LONG for seconds, _ in times), *(rest for _, rest in times),
        status.st_mode, status.st_nlink, status.st_uid, status.st_gid,
        status.st_rdev & 0xFFFFFFFF, status.st_blksize, 0,
    )  # fmt: skip


def write_all(fd: int, data: bytes) -> None:
    """Write all of it.

    Raises:
        OSError: It cannot be written.
    """
    with memoryview(data) as rest:
        at = 0
        while at < len(rest):
            at += os.write(fd, rest[at:])


class Handle:
    """An open file."""

    __slots__ = ("_first", "_names", "_rest", "fd", "file", "has_room")

    def __init__(self, fd: int, file: int) -> None:
        self.fd = fd
        self.file = file
        self.has_room = False
        self._rest, self._first = _names_in(fd), 0
        self._names: list[bytes] = []

    def close(self) -> None:
        self._rest.close()
        os.close(self.fd)

    def names_from(self, number: int) -> "Iterator[bytes]":
        """Yield the names in a directory, without the first ones.

        It may have millions of them: so they are read as they are asked for, and only those that
        were yielded last are known when some of them are asked for once more.
        """
        known = number - self._first
        if not number or not 0 <= known <= len(self._names):
            self._rest.close()
            self._rest, self._names, known = _names_in(self.fd), [], 0
            for _ in islice(self._rest, number):
                pass
        del self._names[:known]
        self._first = number
        yield from tuple(self._names)
        for name in self._rest:
            self._names.append(name)
            yield name


def _names_in(fd: int) -> "Generator[bytes, None, None]":
    if os.scandir not in os.supports_fd:  # Python 3.6
        yield from map(os.fsencode, os.listdir(fd))
        return
    os.lseek(fd, 0, os.SEEK_SET)
    with os.scandir(fd) as found:
        for entry in found:
            yield os.fsencode(entry.name)
