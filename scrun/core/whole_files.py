"""Files that are there as a whole or not at all, though a disk fills or a process is killed."""

import fcntl
import os
from contextlib import suppress

PART = ".part"
"""Ends the name of what is being written: one for each file, which the next writer takes over."""


def write_whole(path: str, content: bytes, mode: int = 0o600) -> None:
    """Write a file, or replace it.

    `mode` counts whatever the umask is.

    Raises:
        OSError: It cannot be written; nothing of it is left.
    """
    part = path + PART
    file = _own(part)
    try:
        os.ftruncate(file, 0)
        while content:
            content = content[os.write(file, content) :]
        os.fchmod(file, mode)
        os.rename(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise
    finally:
        os.close(file)


def _own(part: str) -> int:
    """Open a part, and lock it: another process may write the same file."""
    while True:
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with suppress(OSError):  # where a file system has no locks
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file), os.stat(part)):
                return file
        except FileNotFoundError:  # the other one has finished
            pass
        except BaseException:
            os.close(file)
            raise
        os.close(file)
