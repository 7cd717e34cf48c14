"""Writes and copies files and small trees without following links."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from scrun.core.errors import StagingError
from scrun.core.trees import OPEN_FOLDER, everything_below

if TYPE_CHECKING:
    pass

FILE_LIMIT = 1 << 20
DIRECTORY_LIMIT = 16 << 20

_READING = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_DEPTH = 200


def write(path: str, content: bytes, folder: int | None = None) -> None:
    """Write a new file that only its owner can read."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(content)


def copy(source: str, destination: str) -> None:
    """Copy a small file or directory.

    Raises:
        StagingError: It is too large or too deep.
    """
    try:
        folder = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except NotADirectoryError:
        _copy_file(os.open(source, _READING), source, destination, None, FILE_LIMIT)
        return
    try:
        os.mkdir(destination)
        into = os.open(destination, OPEN_FOLDER)
        try:
            _copy_directory(folder, into, source, DIRECTORY_LIMIT, _DEPTH)
        finally:
            os.close(into)
    finally:
        os.close(folder)


def _copy_directory(source: int, target: int, path: str, left: int, depth: int) -> int:
    """Copy the directories, links and files in a directory, and nothing else.

    A container may replace entries by links meanwhile; those are not followed.

    Returns:
        How many more bytes may be copied.
    """
    if not depth:
        raise StagingError(f"{path}: more than {_DEPTH} directories within each other")
    for name in os.listdir(source):
        inner = f"{path}/{name}"
        mode = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        elif stat.S_ISREG(mode):
            reading = os.open(name, _READING | os.O_NOFOLLOW, dir_fd=source)
            left -= _copy_file(reading, inner, name, target, left)
        elif stat.S_ISDIR(mode):
            try:
                folder = os.open(name, OPEN_FOLDER | os.O_CLOEXEC, dir_fd=source)
            except PermissionError:  # the container cannot read it either
                continue
            try:
                os.mkdir(name, dir_fd=target)
                into = os.open(name, OPEN_FOLDER | os.O_CLOEXEC, dir_fd=target)
                try:
                    left = _copy_directory(folder, into, inner, left, depth - 1)
                finally:
                    os.close(into)
            finally:
                os.close(folder)
    os.fchmod(target, stat.S_IMODE(os.fstat(source).st_mode))  # last: it may forbid writing
    return left


def _copy_file(reading: int, source: str, name: str, folder: int | None, limit: int) -> int:
    """Copy a regular file, which may have grown, or become a FIFO, meanwhile.

    Args:
        reading: The open file; closed here.
        source: Its name for messages.
        name: The copy's name.
        folder: The copy's directory.
        limit: The most bytes to copy.
    """
    with open(reading, "rb") as file:
        status = os.fstat(file.fileno())
        content = file.read(limit + 1) if stat.S_ISREG(status.st_mode) else None
    if content is None or len(content) > limit:
        raise StagingError(f"{source} changed while it was copied")
    write(name, content, folder)
    os.chmod(name, status.st_mode & 0o777, dir_fd=folder)
    return len(content)


def mebibytes(directory: str) -> int:
    """Return the disk usage of a tree in MiB, at least 1."""
    return max(1, sum(status.st_blocks for status in everything_below(directory)) >> 11)
