"""Locks of a store: one for each key, held by whoever makes or removes an image, or leases it.

flock(2) reaches other machines on NFS and on most parallel file systems. Where it does not, two
machines may make the same image at once: one of them loses by the rename, and nothing breaks.
"""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator

_INTERVAL = 0.2
_LONGEST = 200
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class Lock:
    """A lock that is held; what its holder says is for those who wait."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def say(self, text: str) -> None:
        """Tell those who wait how far it is: "3.1 of 9.8 GiB"."""
        with contextlib.suppress(OSError):
            content = text.encode(errors="replace")[:_LONGEST]
            os.pwrite(self._fd, content, 0)
            os.ftruncate(self._fd, len(content))

    def is_at(self, path: str) -> bool:
        """Tell whether the lock's file is still there, for a file that its holder may remove."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(path, follow_symlinks=False))
        except FileNotFoundError:
            return False


@contextlib.contextmanager
def locked(
    path: str,
    *,
    shared: bool = False,
    waiting: Callable[[str], None] = lambda said: None,
) -> Iterator[Lock]:
    """Hold a lock; blocks while somebody else does.

    Args:
        path: Its file, which is made, and stays.
        shared: Whether others may hold it as well, in the same way.
        waiting: Called now and then while somebody else holds it, with what that one says. It may
            raise, to wait no longer.

    Raises:
        OSError: The file cannot be made.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        while not _take(fd, kind):
            waiting(os.pread(fd, _LONGEST, 0).decode(errors="replace"))
            time.sleep(_INTERVAL)
        lock = Lock(fd)
        if not shared:
            lock.say("")
        yield lock
    finally:
        os.close(fd)


@contextlib.contextmanager
def locked_if_free(path: str) -> Iterator[bool]:
    """Hold a lock if nobody else does; yields whether it is held.

    It is not if its holder has removed its file, and somebody else has made another.

    Raises:
        OSError: The file cannot be made.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield _take(fd, fcntl.LOCK_EX) and Lock(fd).is_at(path)
    finally:
        os.close(fd)


def _take(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    return True
