"""Writes files, and measures trees, without following links."""

import os

from scrun.core.trees import everything_below


def write(path: str, content: bytes, folder: int | None = None) -> None:
    """Write a new file that only its owner can read."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(content)


def mebibytes(directory: str) -> int:
    """Return the disk usage of a tree in MiB, at least 1."""
    return max(1, sum(status.st_blocks for status in everything_below(directory)) >> 11)
