"""Root file systems that are plain directories: those of engines' driver vfs, and of bundles.

The driver vfs of podman and docker gives each container a copy of its image's directory. Where
nodes do not see these, they can mount a copy of the image in the store of images, with what the
container's directory has else. An image's author may be hostile: no link is followed. Everything
here blocks.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from scrun.supervisor.staging.copies import OPEN, Room, copy_all, copy_entry, dress
from scrun.supervisor.staging.digests import parent_of
from scrun.supervisor.staging.overlay_options import Overlay, Unusable

if TYPE_CHECKING:
    pass

_DEPTH = 100  # three descriptors each
_INODE = re.compile(r"^inode ([0-9]+)$", re.ASCII | re.MULTILINE)


def layers_of(rootfs: str) -> Overlay:
    """Return what an engine's vfs has made a container's directory from, as layers.

    Raises:
        Unusable: It is not such a directory, or no record tells.
    """
    image = parent_of(rootfs)
    if image is None or not os.path.isdir(image):
        raise Unusable("are not known: it is not a mount of its own, nor of a driver vfs")
    why_not = "are plain directories, which the node does not see"
    return Overlay((rootfs, image), users=False, why_not=why_not, plain=True)


def write_difference(own: str, image: str, into: str, room: Room, *, owners: bool) -> None:
    """Write, as a layer, what makes another directory of an image's.

    Files with the same size, time and permissions are the same: podman's copies keep them.

    Args:
        into: An empty directory.

    Raises:
        Unusable: It is more, or not only files, directories and links.
    """
    opened: list[int] = []
    try:
        opened.extend(os.open(path, OPEN) for path in (own, image, into))
        _compare(opened[0], opened[1], opened[2], room, _DEPTH, owners=owners)
    finally:
        for fd in opened:
            os.close(fd)


def _compare(own: int, image: int, into: int, room: Room, depth: int, *, owners: bool) -> bool:
    """Write the difference of one directory; return whether there is one."""
    if not depth:
        raise Unusable(f"have more than {_DEPTH} directories within each other")
    changed = False
    mine, theirs = (set(map(os.fsencode, os.listdir(folder))) for folder in (own, image))
    for name in theirs - mine:
        room.take(0)
        os.mknod(name, stat.S_IFCHR, dir_fd=into)
        changed = True
    for name in mine:
        new = os.stat(name, dir_fd=own, follow_symlinks=False)
        old = None
        if name in theirs:
            old = os.stat(name, dir_fd=image, follow_symlinks=False)
        if stat.S_ISDIR(new.st_mode):
            changed |= _folder(name, (own, image, into), (new, old), room, depth, owners=owners)
        elif old is None or not _same(name, own, image, new, old):
            room.take(copy_entry(own, into, name, room=room.left, owners=owners))
            changed = True
    return changed


def _folder(
    name: bytes,
    folders: tuple[int, int, int],
    statuses: tuple[os.stat_result, os.stat_result | None],
    room: Room,
    depth: int,
    *,
    owners: bool,
) -> bool:
    own, image, into = folders
    new, old = statuses
    is_in_both = old is not None and stat.S_ISDIR(old.st_mode)
    os.mkdir(name, 0o700, dir_fd=into)
    opened: list[int] = []
    try:
        both = (own, into, *([image] if is_in_both else []))
        opened.extend(os.open(name, OPEN, dir_fd=parent) for parent in both)
        if is_in_both:
            assert old is not None
            changed = _compare(opened[0], opened[2], opened[1], room, depth - 1, owners=owners)
            changed |= _permissions(new) != _permissions(old)
        else:
            room.take(0)
            copy_all(opened[0], opened[1], room, depth - 1, owners=owners)
            changed = True
        if changed:
            dress(opened[1], new, owners=owners)
    finally:
        for fd in opened:
            os.close(fd)
    if not changed:
        os.rmdir(name, dir_fd=into)
    return changed


def _permissions(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mode, status.st_uid, status.st_gid


def _same(name: bytes, own: int, image: int, new: os.stat_result, old: os.stat_result) -> bool:
    if _permissions(new) != _permissions(old):
        return False
    if stat.S_ISLNK(new.st_mode):
        return os.readlink(name, dir_fd=own) == os.readlink(name, dir_fd=image)
    this, that = ((one.st_size, one.st_mtime_ns, one.st_rdev) for one in (new, old))
    return this == that
