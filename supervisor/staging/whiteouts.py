"""Differences of overlays: their size, and the marks that say what has been removed.

The kernel's are devices and an extended attribute. fuse-overlayfs has names as well, as OCI images
do, for file systems that cannot have the others; no container can use such names in it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from scrun.core.errors import StagingError

if TYPE_CHECKING:
    from collections.abc import Sequence

_FUSES_OWN = "user.fuseoverlayfs.opaque"
REMOVED = ".wh."
"""Begins the name that says that what has the rest of it is removed."""

ALL = ".wh..wh..opq"
"""The name that says that all is."""


class Whiteouts(msgspec.Struct, frozen=True):
    """Those of one difference.

    Attributes:
        opaque: The extended attribute of directories that hide what was there.
        by_fuse: Whether fuse-overlayfs may have made some.
    """

    opaque: str
    by_fuse: bool = False

    def hide_all(self, folder: int | str) -> bool:
        """Tell whether a directory hides all that was there."""
        if is_set(folder, self.opaque):
            return True
        return self.by_fuse and (is_set(folder, _FUSES_OWN) or ALL in os.listdir(folder))

    def parted(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Part the names in a directory: those of files, and those that are removed."""
        if not self.by_fuse:
            return [*names], []
        files = [name for name in names if not name.startswith(REMOVED)]
        removed = {name.removeprefix(REMOVED) for name in names} - {*files}
        return files, sorted(removed - {"", ".", "..", ALL.removeprefix(REMOVED)})


def is_deletion(status: os.stat_result) -> bool:
    """Return whether this marks, in a layer, that something below is not there."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_set(folder: int | str, mark: str) -> bool:
    """Return whether a directory has an attribute that is given to those of layers."""
    try:
        return os.getxattr(folder, mark) == b"y"
    except OSError:
        return False


_BLOCK = 512  # stat(2)
_MEBIBYTE = 1 << 20


def check_room(uppers: Sequence[str], original: str, marks: Whiteouts) -> None:
    """Refuse changes that do not fit: half of them would be worse than none.

    Where something is removed as well, nobody knows before.

    Args:
        uppers: See `bring_back.bring_difference_back`; so are the others.

    Raises:
        StagingError: There is less room than they need.
        OSError: They cannot be looked at.
    """
    needed = _growth(uppers, original, marks)
    space = os.statvfs(original)
    free = space.f_bavail * space.f_frsize
    if needed is not None and space.f_blocks and needed > free:
        raise StagingError(
            f"the container's changes are not in {original}: they need "
            f"{needed // _MEBIBYTE + 1} MiB, and {free // _MEBIBYTE} are free there"
        )


def _growth(uppers: Sequence[str], original: str, marks: Whiteouts) -> int | None:
    """Return the bytes by which the original will grow; None if something is removed."""
    total = 0
    seen: set[tuple[int, int]] = set()
    todo = [(upper, original) for upper in uppers]
    while todo:
        folder, there = todo.pop()
        if marks.hide_all(folder):
            return None
        with os.scandir(folder) as found:
            for entry in found:
                status, path = entry.stat(follow_symlinks=False), os.path.join(there, entry.name)
                if is_deletion(status) or marks.parted([entry.name])[1]:
                    return None
                if stat.S_ISDIR(status.st_mode):
                    todo.append((entry.path, path))
                elif (key := (status.st_dev, status.st_ino)) not in seen:
                    total += (status.st_blocks - _blocks(path)) * _BLOCK
                    if status.st_nlink > 1:
                        seen.add(key)
    return total


def _blocks(path: str) -> int:
    try:
        return os.lstat(path).st_blocks
    except OSError:
        return 0
