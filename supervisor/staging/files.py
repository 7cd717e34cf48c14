"""Small files and whole trees: written, copied and removed so that no name leads astray."""

from __future__ import annotations

import os
import shutil
import stat

from scrun.errors import StagingError
from supervisor.staging.mounts import DIRECTORY_LIMIT, FILE_LIMIT

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def write(path: str, content: bytes) -> None:
    """Write a new file that only its owner reads."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)


def copy(source: str, destination: str) -> None:
    """Copy a file, or a directory, none of them large."""
    if os.path.isdir(source):
        _copy_directory(source, destination)
    else:
        _copy_file(source, destination, FILE_LIMIT)


def _copy_directory(source: str, destination: str) -> None:
    """Copy what a directory has of directories, links and files; nothing else can be copied."""
    left = DIRECTORY_LIMIT
    for folder, folders, names in os.walk(source):
        into = os.path.normpath(os.path.join(destination, os.path.relpath(folder, source)))
        os.mkdir(into)
        for name in names + folders:
            path, copied = os.path.join(folder, name), os.path.join(into, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                os.symlink(os.readlink(path), copied)
            elif stat.S_ISREG(mode):
                left -= _copy_file(path, copied, left)
    # from below, so that a directory without write permission can be filled first
    for folder, _, _ in os.walk(source, topdown=False):
        shutil.copymode(
            folder, os.path.normpath(os.path.join(destination, os.path.relpath(folder, source)))
        )


def _copy_file(source: str, destination: str, limit: int) -> int:
    """Copy a regular file; it may have grown, or become a FIFO, since it was looked at."""
    descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        content = file.read(limit + 1) if stat.S_ISREG(status.st_mode) else None
    if content is None or len(content) > limit:
        raise StagingError(f"{source} changed while it was copied")
    write(destination, content)
    os.chmod(destination, status.st_mode & 0o777)
    return len(content)


def mebibytes(directory: str) -> int:
    """Return what a tree takes on the disk, in MiB and at least 1."""
    blocks = 0
    for folder, folders, names in os.walk(directory):
        for name in names + folders:
            blocks += os.lstat(os.path.join(folder, name)).st_blocks
    return max(1, blocks >> 11)


def remove(parent: int, name: str, device: int) -> None:
    """Remove a name and all below it: no link is followed, no other file system entered."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=parent)
        return
    if status.st_dev != device:
        raise StagingError(f"{name} is a mount point")
    if status.st_mode & 0o700 != 0o700:
        _open_up(parent, name)
    folder = os.open(name, OPEN_FOLDER, dir_fd=parent)
    try:
        for entry in os.listdir(folder):
            remove(folder, entry, device)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=parent)


def _open_up(parent: int, name: str) -> None:
    """Permit everything in a directory: images have some that their owner cannot change.

    There is no chmod(2) that does not follow links, so it goes by a descriptor that cannot be
    of a link, in case something exchanges the directory now.
    """
    folder = os.open(name, OPEN_FOLDER | os.O_PATH, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{folder}", 0o700)
    finally:
        os.close(folder)
