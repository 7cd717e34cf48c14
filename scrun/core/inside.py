"""Opens files of a root file system that somebody else, who may be hostile, has written.

Links mean what they mean in the container: the kernel never gets a path with one, but each
component is opened on its own, relative to the directory before it, and `..` returns along the
opened directories.
"""

import errno
import os
import stat

from scrun.core.paths import LIMIT, open_regular

OPEN_ENTRY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
LINKS = 40
"""The most links in a path, as for the kernel (path_resolution(7))."""
DEPTH = 255
"""The most directories that a path goes through: each is an open descriptor for a while."""


def open_inside(root: int, path: bytes) -> int:
    """Open what a path names (O_PATH); links are followed within the root.

    Args:
        root: The root directory's descriptor.
        path: The path; where it begins makes no difference.

    Raises:
        OSError: It does not exist, or the way there is too long.
    """
    way = [os.dup(root)]
    todo = path.split(b"/")[::-1]
    links = 0
    try:
        while todo:
            name = todo.pop()
            if name in (b"", b"."):
                continue
            if name == b"..":
                _go_back(way, max(1, len(way) - 1))
                continue
            if len(way) > DEPTH:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
            way.append(os.open(name, OPEN_ENTRY, dir_fd=way[-1]))
            if not stat.S_ISLNK(os.fstat(way[-1]).st_mode):
                continue
            links += 1
            if links > LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(b"", dir_fd=way[-1])
            _go_back(way, 1 if target.startswith(b"/") else len(way) - 1)
            todo += target.split(b"/")[::-1]
        return way.pop()
    finally:
        _go_back(way, 0)


def _go_back(way: list[int], length: int) -> None:
    while len(way) > length:
        os.close(way.pop())


def read_inside(root: int, path: bytes, limit: int = LIMIT) -> bytes:
    """Read a regular file of bounded size.

    Raises:
        OSError: It does not exist, is not a regular file, or is larger.
    """
    found = open_inside(root, path)
    try:
        file = open_regular(f"/proc/self/fd/{found}")
    finally:
        os.close(found)
    with open(file, "rb") as opened:
        content = opened.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"is larger than {limit >> 20} MiB", path)
    return content
