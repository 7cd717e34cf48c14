"""Opens files of a root file system that somebody else, who may be hostile, has written.

Links mean what they mean in the container: the kernel never gets a path with one, but each
component is opened on its own, relative to the directory before it, and `..` returns along the
opened directories.
"""

import errno
import os
import stat
from collections.abc import Callable
from typing import NamedTuple

from scrun.core.paths import LIMIT, open_regular

OPEN_ENTRY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
LINKS = 40
"""The most links in a path, as for the kernel (path_resolution(7))."""
DEPTH = 255
"""The most directories that a path goes through: each is an open descriptor for a while."""


class PathStep(NamedTuple):
    """A step of a way: its name in the directory before it, open; `layer` is the walker's own."""

    name: str
    fd: int
    layer: int = -1


def open_inside(root: int, path: bytes) -> int:
    """Open (O_PATH) what a path names, absolute or not; links are followed within `root`."""
    way = [PathStep("", os.dup(root))]
    try:
        walk(way, os.fsdecode(path), _enter)
        return way.pop().fd
    finally:
        go_back(way, 0)


def walk(
    way: list[PathStep],
    path: str,
    enter: Callable[[list[PathStep], str], PathStep],
    depth: int = DEPTH,
) -> None:
    """Go along a path, symbolic links included, which are those of the root.

    `way` is what is open: the root at first, and in the end what the path names. `path` is the
    path; where it begins makes no difference. `enter` takes one step down, without following
    links.

    Raises:
        OSError: ENOTDIR, ELOOP or ENAMETOOLONG; and what `enter` raises.
    """
    todo = path.split("/")[::-1]
    links = 0
    while todo:
        name = todo.pop()
        if not stat.S_ISDIR(os.fstat(way[-1].fd).st_mode):
            raise _error(errno.ENOTDIR, path)
        if name in ("", "."):
            continue
        if name == "..":
            go_back(way, max(1, len(way) - 1))
            continue
        if len(way) > depth:
            raise _error(errno.ENAMETOOLONG, path)
        way.append(enter(way, name))
        if not stat.S_ISLNK(os.fstat(way[-1].fd).st_mode):
            continue
        links += 1
        if links > LINKS:
            raise _error(errno.ELOOP, path)
        target = os.readlink("", dir_fd=way[-1].fd)
        go_back(way, 1 if target.startswith("/") else len(way) - 1)
        todo += target.split("/")[::-1]


def go_back(way: list[PathStep], length: int) -> None:
    """Close all but the first steps."""
    while len(way) > length:
        os.close(way.pop().fd)


def _enter(way: list[PathStep], name: str) -> PathStep:
    return PathStep(name, os.open(name, OPEN_ENTRY, dir_fd=way[-1].fd))


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def read_inside(root: int, path: bytes, limit: int = LIMIT) -> bytes:
    """Read a regular file of bounded size; OSError for a larger one, or anything else."""
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
