"""Locks of files, which go with their last descriptor."""

import fcntl
import os


def lock(fd: int, how: int) -> bool:
    """Lock a file if nobody has; return whether that is so."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_at(fd: int, path: str) -> bool:
    """Tell whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False
