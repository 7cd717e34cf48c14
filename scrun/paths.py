"""Paths that somebody else may have had a hand in: read without waiting, and judged.

Imports little: commands use it.
"""

import errno
import os
import stat

LIMIT = 16 * 1024 * 1024
"""No file that scrun reads as a whole is larger; what is, is something else."""

_LINKS = 40
_NOBODY = 65534
"""Whom files of users belong to that a user namespace does not have (user_namespaces(7))."""


def read_regular(path: str, limit: int = LIMIT) -> bytes:
    """Read a regular file of bounded size; never wait for a FIFO's writer.

    Raises:
        OSError: It cannot be read, is something else, or too large; `strerror` says so.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device that is not there
            raise OSError(errno.EINVAL, "is not a regular file", path) from None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", path)
        content = b""
        # in pieces of its size: room for all that would be too much is not asked for
        while len(content) <= limit and (piece := os.read(fd, min(status.st_size, limit) + 1)):
            content += piece
    finally:
        os.close(fd)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"is larger than {limit >> 20} MiB", path)
    return content


def has_record(directory: str) -> bool:
    """Tell whether there is a container: whether ROOT/ID is a directory.

    Raises:
        OSError: That cannot be known.
    """
    try:
        return stat.S_ISDIR(os.lstat(directory).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def exchangeable(path: str) -> str:
    """Tell how another user could put something else in a directory's place, or might have.

    On the way there nothing may be writable for everybody, but with the sticky bit: there nobody
    can rename what is another user's. What lies in such a directory anybody could have made first,
    so it has to be the caller's or root's. Groups are trusted by whoever lets them write.

    Args:
        path: The directory, absolute; it may be missing.

    Returns:
        A reason, with the path that is at fault, or "".

    Raises:
        OSError: A directory on the way cannot be looked at.
    """
    place, links = "/", 0
    todo = path.split("/")[::-1]
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        if name == "..":
            place = os.path.dirname(place)
            continue
        above = os.stat(place).st_mode
        shared = bool(above & stat.S_IWOTH)
        if shared and not above & stat.S_ISVTX:
            return f"everybody may write to {place}: chmod o-w, or +t"
        here = os.path.join(place, name)
        try:
            status = os.lstat(here)
        except FileNotFoundError:
            return ""
        if shared and status.st_uid not in (0, os.geteuid()):
            return f"{here} belongs to uid {status.st_uid}"
        if not stat.S_ISLNK(status.st_mode):
            place = here
            continue
        links += 1
        if links > _LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(here)
        todo += target.split("/")[::-1]
        if target.startswith("/"):
            place = "/"
    return ""
