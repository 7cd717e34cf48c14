"""Copies few and small files into directories that nobody else writes to.

Links are not followed. Everything here blocks: call it in a worker thread.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from scrun.core.trees import OPEN_FOLDER
from scrun.supervisor.staging.overlay_options import Unusable
from scrun.supervisor.staging.whiteouts import is_deletion, is_set

MOST = 2000
OPEN = OPEN_FOLDER | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_BYTES = 64 << 20
_PIECE = 1 << 20
_DEPTH = 50
_MARKS = ("user.overlay.", "trusted.overlay.", "user.fuseoverlayfs.")


class Vanished(OSError):
    """What is to be copied is not there any more, or something else is."""


@contextlib.contextmanager
def from_the_living(name: str | bytes) -> Iterator[None]:
    """Read something that others may remove or replace at any moment.

    Raises:
        Vanished: They have.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL):
            raise
        raise Vanished(errno.ESTALE, "somebody has replaced it meanwhile", name) from error


def open_regular(name: str | bytes, folder: int, flags: int = os.O_RDONLY) -> int:
    """Open a regular file, and nothing that a container has put in its place: to open acts.

    Raises:
        Vanished: It is something else by now.
        OSError: It cannot be opened.
    """
    with from_the_living(name):
        found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise Vanished(errno.ESTALE, "somebody has replaced it meanwhile", name)
        return os.open(f"/proc/self/fd/{found}", flags | os.O_CLOEXEC)
    finally:
        os.close(found)


def is_foreign(status: os.stat_result) -> bool:
    """Return whether something belongs to another user or group than this process."""
    return status.st_uid != os.geteuid() or status.st_gid != os.getegid()


class Room:
    """How much more may be copied.

    Attributes:
        left: The bytes.
    """

    def __init__(self, size: int = _BYTES, entries: int = MOST) -> None:
        self.left = size
        self._entries = entries

    def take(self, size: int) -> None:
        """Count one more.

        Raises:
            Unusable: They are too many.
        """
        self.left -= size
        self._entries -= 1
        if self._entries < 0:
            raise Unusable("have too many files to copy for the container's one user")


def copy_all(
    source: int,
    target: int,
    room: Room,
    depth: int = _DEPTH,
    *,
    owners: bool = False,
    opaque: str = "",
) -> None:
    """Copy everything in a directory, whoever it belongs to.

    Args:
        target: An empty directory.
        opaque: For a layer: the extended attribute of directories that hide what is below.

    Raises:
        Unusable: It is more, or not only files, directories and links.
    """
    if not depth:
        raise Unusable(f"have more than {_DEPTH} directories within each other")
    for name in map(os.fsencode, os.listdir(source)):
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        if opaque and is_deletion(status):
            room.take(0)
            os.mknod(name, stat.S_IFCHR, dir_fd=target)
            continue
        if not stat.S_ISDIR(status.st_mode):
            room.take(copy_entry(source, target, name, room=room.left, owners=owners))
            continue
        room.take(0)
        inner = os.open(name, OPEN, dir_fd=source)
        try:
            os.mkdir(name, 0o700, dir_fd=target)
            copied = os.open(name, OPEN, dir_fd=target)
            try:
                copy_all(inner, copied, room, depth - 1, owners=owners, opaque=opaque)
                if opaque and is_set(inner, opaque):
                    os.setxattr(copied, opaque, b"y")
                dress(copied, status, owners=owners)
            finally:
                os.close(copied)
        finally:
            os.close(inner)


def copy_entry(source: int, target: int, name: bytes, *, room: int, owners: bool = False) -> int:
    """Copy a file or a link from one directory to another.

    Args:
        room: The most bytes.

    Returns:
        Its bytes.

    Raises:
        Unusable: It is larger, or something else.
    """
    status = os.stat(name, dir_fd=source, follow_symlinks=False)
    shown = os.fsdecode(name)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        if owners:
            os.chown(name, status.st_uid, status.st_gid, dir_fd=target, follow_symlinks=False)
        return 0
    if not stat.S_ISREG(status.st_mode):
        raise Unusable(f"have a device, FIFO or socket of another user: {shown!a}")
    reading = open_regular(name, source)
    try:
        status = os.fstat(reading)
        if status.st_size > room:
            raise Unusable(f"have more than {_BYTES >> 20} MiB to copy: {shown!a}")
        writing = os.open(name, WRITE, 0o600, dir_fd=target)
        try:
            copy_content(reading, writing, status.st_size)
            dress(writing, status, owners=owners)
        finally:
            os.close(writing)
    finally:
        os.close(reading)
    return status.st_size


def dress(fd: int, status: os.stat_result, *, owners: bool) -> None:
    """Set owner, mode and times; the owner first: chown(2) clears bits."""
    mode = stat.S_IMODE(status.st_mode)
    if owners:
        os.fchown(fd, status.st_uid, status.st_gid)
    elif is_foreign(status):
        mode &= ~(stat.S_ISUID | stat.S_ISGID)  # it would be another user's
    os.fchmod(fd, mode)
    os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))


def copy_content(reading: int, writing: int, size: int) -> None:
    """Copy at most so many bytes, and the extended attributes, as far as permitted."""
    if os.fstat(reading).st_blocks * 512 < size:
        _copy_data(reading, writing, size)
    else:
        left = size
        while left > 0 and (sent := os.sendfile(writing, reading, None, min(left, _PIECE))):
            left -= sent
    with contextlib.suppress(OSError):
        for name in os.listxattr(reading):
            if name.startswith(_MARKS):
                continue
            with contextlib.suppress(OSError):
                os.setxattr(writing, name, os.getxattr(reading, name))


def _copy_data(reading: int, writing: int, size: int) -> None:
    """Copy a file with holes, which may claim to be larger than any disk, without the holes."""
    end = 0
    while end < size:
        try:
            begin = os.lseek(reading, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        end = min(size, os.lseek(reading, begin, os.SEEK_HOLE))
        os.lseek(writing, begin, os.SEEK_SET)
        while begin < end and (
            sent := os.sendfile(writing, reading, begin, min(end - begin, _PIECE))
        ):
            begin += sent
    os.ftruncate(writing, size)


def copy_attributes(source: int, target: int) -> None:
    """Give a directory the extended attributes of another, as far as permitted.

    What is so already is not touched: on an overlay that would be a change.
    """
    wanted, there = _attributes(source), _attributes(target)
    for name in wanted.keys() | there.keys():
        with contextlib.suppress(OSError):
            if name not in wanted:
                os.removexattr(target, name)
            elif wanted[name] != there.get(name):
                os.setxattr(target, name, wanted[name])


def _attributes(folder: int) -> dict[str, bytes]:
    """Return extended attributes, without the kernel's and the machine's own."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listxattr(folder):
            if not name.startswith((*_MARKS, "security.")):
                with contextlib.suppress(OSError):
                    found[name] = os.getxattr(folder, name)
    return found
