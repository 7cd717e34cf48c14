"""Looks whether directories are those that are meant: another mount may be there on the node."""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def unlike(looks: "Sequence[tuple[str, int, int | None]]") -> "list[int]":
    """Return the numbers of those that are others here.

    Args:
        looks: Of each its path, its inode, and the seconds of its time if that may not differ.
    """
    return [number for number, look in enumerate(looks) if not _is_there(*look)]


def _is_there(path: str, inode: int, seconds: "int | None") -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return status.st_ino == inode and seconds in (None, status.st_mtime_ns // 10**9)
