"""Files that only their owner can read, and private directories in shared places."""

import os
import stat
from collections.abc import Callable

from scrun.core.errors import StagingError, why
from scrun.core.paths import replaceable
from scrun.core.trees import everything_below


def write(path: str, content: bytes, folder: int | None = None) -> None:
    """Write a new file that only its owner can read."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(content)


def mebibytes(directory: str) -> int:
    """Return the disk usage of a tree in MiB, at least 1."""
    return max(1, sum(status.st_blocks for status in everything_below(directory)) >> 11)


def make_private(directory: str, remedy: str, clean_up: Callable[[], None] = lambda: None) -> None:
    """Make a directory that only its owner may enter, unless it exists.

    In a shared scratch directory somebody else may have made it first, or a directory above it:
    that user could replace the staged bundle, and the container would run another one.

    Args:
        remedy: What to do if it cannot be used.
        clean_up: Called when it is known to be the user's own, before it has to be empty.

    Raises:
        StagingError: Others can change it, or it is not empty.
    """
    try:
        if not (reason := replaceable(directory)):
            os.makedirs(directory, mode=0o700, exist_ok=True)
            # somebody else may have made it meanwhile
            reason = not_ours(directory)
        if reason:
            reason = reason.removeprefix(f"{directory}: ")
            raise StagingError(f"staging in {directory}: {reason}; {remedy}")
        clean_up()
        if os.listdir(directory):
            raise StagingError(f"staging in {directory}: it is not empty; {remedy}")
        os.chmod(directory, 0o700)
    except OSError as error:
        raise StagingError(f"staging in {directory}: {why(error, remedy)}") from error


def not_ours(directory: str) -> str:
    """Return why others may have changed a directory's content, or ""."""
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return "it belongs to somebody else"
    return replaceable(directory)
