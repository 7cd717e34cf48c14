"""The files of a container's output and messages; they have a limit (`supervisor.log.limited`)."""

import errno
import os
import stat

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_both(name: str, directory: "int | None" = None) -> "list[int]":
    """Open a file of limited size, and its older half if there is one (`supervisor.log.limited`).

    Returns:
        Descriptors, the older one first.

    Raises:
        OSError: It cannot be read.
    """
    files = [_open(name, directory)]
    try:
        files.insert(0, _open(name + ".1", directory))
    except FileNotFoundError:
        return files
    if os.path.samestat(os.fstat(files[0]), os.fstat(files[1])):
        os.close(files.pop())  # it was renamed to the older one just now
    return files


def lost_bytes(name: str, directory: int) -> int:
    """Return how many bytes are missing at the beginning, because of a limit or a full disk."""
    try:
        with open(_open(name + ".lost", directory), "rb") as file:
            return int(file.read(32))
    except (OSError, ValueError):
        return 0


def _open(name: str, directory: "int | None" = None) -> int:
    """Open a regular file; follow no link.

    Raises:
        OSError: It cannot be read.
    """
    file = os.open(name, _FLAGS, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", name)
    return file
