"""Walk and remove trees that somebody else, who may be hostile, has written."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple

from scrun.core.errors import StagingError

_BLOCK = 512  # stat(2)
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def everything_below(directory: str) -> Iterator[os.stat_result]:
    """Yield the status of everything below a directory; skips what cannot be read."""
    todo = [directory]
    while todo:
        with contextlib.suppress(OSError), os.scandir(todo.pop()) as found:
            for entry in found:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    todo.append(entry.path)
                yield status


def size_of(directory: str, limit: int) -> int:
    """Add up files on a file system, without holes, to the limit, or slightly beyond."""
    total = 0
    todo = [directory]
    with contextlib.suppress(OSError):
        device = os.stat(directory).st_dev
        while todo and total <= limit:
            with contextlib.suppress(OSError), os.scandir(todo.pop()) as found:
                for entry in found:
                    status = entry.stat(follow_symlinks=False)
                    if status.st_dev != device:
                        continue
                    if stat.S_ISDIR(status.st_mode):
                        todo.append(entry.path)
                    elif stat.S_ISREG(status.st_mode):
                        total += min(status.st_size, status.st_blocks * _BLOCK)
    return total


class _Level(NamedTuple):
    """A directory on the path to the current one, with its parent's identity and other entries."""

    name: str
    above: tuple[int, int]
    todo: list[str]


def remove_tree(path: str) -> None:
    """Remove a path as `remove` does; its directory must exist, and not be a link."""
    directory, name = os.path.split(path)
    parent = os.open(directory, OPEN_FOLDER | os.O_CLOEXEC)
    try:
        remove(parent, name, os.fstat(parent).st_dev)
    finally:
        os.close(parent)


def remove_aside(directory: str, aside: str) -> None:
    """Remove a directory, but rename it first, so that nobody sees half of it.

    Mounts in it are left alone: a script may have mounted an image there. A supervisor removes
    `aside`, in the same directory, if we are killed. Raises StagingError for a mount.
    """
    # only a rename: on a full file system nothing else works before space is freed
    os.rename(directory, aside)
    while os.path.lexists(aside):
        try:
            remove_tree(aside)
        except FileNotFoundError:
            pass  # a supervisor that has been started meanwhile removes it as well
        except StagingError as error:
            parent = os.path.dirname(aside)
            raise StagingError(f"{parent}/{error}: unmount it, and remove {aside}") from None


def remove_whoever_owns_it(path: str, as_their_owner: Callable[[str], None]) -> None:
    """Remove a tree; `as_their_owner` removes what only subordinate ids can."""
    try:
        remove_tree(path)
    except PermissionError:
        if os.geteuid() == 0:
            raise
        as_their_owner(path)
        if os.path.lexists(path):
            raise


def remove(parent: int, name: str, device: int) -> None:
    """Remove an entry and all below it, without following links or entering mounts.

    It takes two descriptors and no recursion at any depth: a container can nest ten thousands of
    directories. Nothing happens if the entry does not exist. The device does not tell of a
    directory of the same file system that is bind-mounted, so each mount is compared as well.

    Raises:
        StagingError: Something is mounted there, or somebody moves directories meanwhile.
    """
    here = os.dup(parent)
    way: list[_Level] = []
    todo = [name]
    mount = mount_of(here)
    try:
        while todo or way:
            if todo:
                folder = _unless_folder(here, todo[-1], (device, mount), way)
                level = _Level(todo.pop(), _identity(here), todo)
                if folder < 0:
                    continue
                way.append(level)
                os.close(here)
                here = folder
                todo = os.listdir(here)
            else:
                above = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
                os.close(here)
                here = above
                level = way.pop()
                if _identity(here) != level.above:
                    raise StagingError(f"{_path(way, level.name)} was moved while it was removed")
                os.rmdir(level.name, dir_fd=here)
                todo = level.todo
    finally:
        os.close(here)


def mount_of(folder: int) -> str:
    """Return what tells the mount of a descriptor from others: /proc/self/fdinfo, proc(5)."""
    with open(f"/proc/self/fdinfo/{folder}") as facts:
        return next(line for line in facts if line.startswith("mnt_id:"))


def _unless_folder(
    parent: int, name: str, device_and_mount: tuple[int, str], way: list[_Level]
) -> int:
    """Open a directory; remove anything else, and return -1."""
    device, mount = device_and_mount
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return -1
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=parent)
        return -1
    if status.st_dev != device:
        raise StagingError(f"{_path(way, name)} is a mount point")
    if status.st_mode & 0o700 != 0o700:
        _open_up(parent, name)
    folder = os.open(name, OPEN_FOLDER | os.O_CLOEXEC, dir_fd=parent)
    if mount_of(folder) != mount:
        os.close(folder)
        raise StagingError(f"{_path(way, name)} is a mount point")
    return folder


def _identity(folder: int) -> tuple[int, int]:
    status = os.fstat(folder)
    return status.st_dev, status.st_ino


def _path(way: list[_Level], name: str) -> str:
    return "/".join((*(level.name for level in way), name))


def _open_up(parent: int, name: str) -> None:
    """Give the owner all permissions for a directory: images have some without.

    chmod(2) follows links, so this uses a descriptor that cannot be of a link, in case somebody
    replaces the directory meanwhile.
    """
    folder = os.open(name, OPEN_FOLDER | os.O_PATH, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{folder}", 0o700)
    finally:
        os.close(folder)
