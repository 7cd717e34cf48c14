"""Finds and copies the files of an image that one user of a node could not use.

In a container with one user, files of other users belong to nobody: they can be neither written
nor removed, and those for their owner alone cannot be read. Images have few of them. The copies
belong to that user, and the node mounts them above the image's layers. The kernel cannot look
into a directory that is for its owner alone: everything in it is copied. Everything here blocks:
call it in a worker thread.
"""

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec

from scrun.core.whole_files import write_whole
from scrun.supervisor.staging.copies import (
    MOST,
    OPEN,
    Room,
    copy_all,
    copy_entry,
    dress,
    is_foreign,
)
from scrun.supervisor.staging.overlay_options import Unusable, opaque
from scrun.supervisor.staging.whiteouts import is_deletion

_KNOWN = 400  # layers


class _LayerOwners(msgspec.Struct, frozen=True):
    """What a layer had when it was looked through.

    Attributes:
        mark: Inode, change and status change of its directory; an image's layers do not change.
        paths: The entries of others.
        closed: Their directories that not everybody may look into.
    """

    mark: tuple[int, int, int]
    paths: tuple[bytes, ...]
    closed: tuple[bytes, ...]


class Foreign(msgspec.Struct, frozen=True):
    """What belongs to others in some layer: see `_Known`."""

    paths: frozenset[bytes]
    closed: frozenset[bytes]


def foreign_in(layers: Sequence[str], cache: str, *, changes: bool) -> Foreign:
    """Return what belongs to others in any layer.

    Args:
        changes: Whether the first one is a container's own, which may change.

    Raises:
        Unusable: They are too many.
    """
    known = _read(cache)
    found = [_look_through(layer) for layer in layers[:changes]]
    new = False
    for layer in layers[changes:]:
        if layer not in known or known[layer].mark != _mark(layer):
            known[layer] = _look_through(layer)
            new = True
        found.append(known[layer])
    if new:
        _write(cache, {path: one for path, one in known.items() if os.path.isdir(path)})
    foreign = Foreign(
        frozenset(path for one in found for path in one.paths),
        frozenset(path for one in found for path in one.closed),
    )
    if len(foreign.paths) > MOST:
        raise Unusable(f"have more than {MOST} files of other users, and the container has one")
    return foreign


def _mark(layer: str) -> tuple[int, int, int]:
    status = os.stat(layer)
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _look_through(layer: str) -> _LayerOwners:
    """Return what belongs to others in a layer, and hardly more than the limit."""
    found: list[bytes] = []
    closed: list[bytes] = []
    mark = _mark(layer)
    root = os.fsencode(layer)
    todo = [root]
    while todo and len(found) <= MOST:
        with os.scandir(todo.pop()) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    todo.append(entry.path)
                if is_foreign(status) and not is_deletion(status):
                    found.append(entry.path[len(root) + 1 :])
                    if stat.S_ISDIR(status.st_mode) and status.st_mode & 0o005 != 0o005:
                        closed.append(found[-1])
    return _LayerOwners(mark, tuple(found), tuple(closed))


def _read(cache: str) -> dict[str, _LayerOwners]:
    try:
        return msgspec.json.decode(Path(cache).read_bytes(), type=dict[str, _LayerOwners])
    except (OSError, msgspec.DecodeError):
        return {}


def _write(cache: str, known: dict[str, _LayerOwners]) -> None:
    """Write the cache; a failure costs only another look next time."""
    latest = dict(list(known.items())[-_KNOWN:])
    with contextlib.suppress(OSError, UnicodeEncodeError):
        os.makedirs(os.path.dirname(cache), mode=0o700, exist_ok=True)
        write_whole(cache, msgspec.json.encode(latest))


def copy_foreign(foreign: Foreign, rootfs: str, into: str, *, whole: bool) -> frozenset[str]:
    """Copy what belongs to others, with the directories above it.

    Args:
        foreign: Where such things are in some layer; in the root file system there may be
            something else.
        rootfs: The root file system, as it is mounted here.
        into: An empty directory.
        whole: Whether the root directory itself is mounted; if not, what is in it has the user as
            its owner anyway.

    Returns:
        The names of the root directory's directories that were copied with all their content.

    Raises:
        Unusable: It is too large, or neither a file nor a directory nor a link.
    """
    room = Room()
    folders: dict[bytes, os.stat_result] = {}
    done: list[bytes] = []
    for path in sorted(foreign.closed):
        # a layer above may have removed it, or put a link in its place
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), _Two(rootfs, into) as two:
            if _is_below(path, done):
                continue
            two.descend(path, folders)
            done.append(path)
            os.setxattr(two.target, opaque(users=True), b"y")
            copy_all(two.source, two.target, room)
    for path in sorted(foreign.paths):
        folder, name = os.path.split(path)
        if not (folder or whole) or _is_below(path, done):
            continue
        # a layer above may have removed it, or put a link in place of its directory
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), _Two(rootfs, into) as two:
            if folder:
                two.descend(folder, folders)
            status = os.stat(name, dir_fd=two.source, follow_symlinks=False)
            if not is_foreign(status):
                continue
            if stat.S_ISDIR(status.st_mode):
                two.descend(name, folders, folder and folder + b"/")
            else:
                room.take(copy_entry(two.source, two.target, name, room=room.left))
    for path, status in sorted(folders.items(), reverse=True):
        with _Two(into, into) as two:
            two.descend(path, {})
            dress(two.target, status, owners=False)
    return frozenset(os.fsdecode(path) for path in done if b"/" not in path)


def _is_below(path: bytes, folders: list[bytes]) -> bool:
    return any(path == folder or path.startswith(folder + b"/") for folder in folders)


class _Two:
    """The same directory of two trees, as descriptors; links are not followed."""

    def __init__(self, source: str, target: str) -> None:
        self.source = os.open(source, OPEN)
        try:
            self.target = os.open(target, OPEN)
        except BaseException:
            os.close(self.source)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.source)
        os.close(self.target)

    def descend(self, path: bytes, made: dict[bytes, os.stat_result], before: bytes = b"") -> None:
        """Enter a directory, and make the target's where it is missing.

        Args:
            path: The directory, relative.
            made: Receives the path and the status of each new one.
        """
        here = before
        for name in path.split(b"/"):
            source = os.open(name, OPEN, dir_fd=self.source)
            os.close(self.source)
            self.source = source
            here += name
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self.target)
                made[here] = os.fstat(source)
            target = os.open(name, OPEN, dir_fd=self.target)
            os.close(self.target)
            self.target = target
            here += b"/"
