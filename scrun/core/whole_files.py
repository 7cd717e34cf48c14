"""Files that are there as a whole or not at all, though a disk fills or a process is killed."""

import fcntl
import os
from contextlib import suppress

PART = ".part"
"""Ends the name of what is being written: one for each file, which the next writer takes over."""


def write_whole(path: str, content: bytes, mode: int = 0o600) -> None:
    """Write a file, or replace it, whole or not at all; `mode` counts whatever the umask is."""
    part = path + PART
    file = own_file(part, perhaps=True)  # another process may write it, too
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


def own_file(path: str, *, perhaps: bool = False) -> int:
    """Open a file, make it if necessary, and lock it; return the descriptor.

    Its holder may remove it or give it another name: whoever waited for the old one locks the new
    one. `perhaps`: the file system may have no locks.
    """
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                if not perhaps:
                    raise
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(file)
            raise
        os.close(file)
