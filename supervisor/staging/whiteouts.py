"""The marks by which an overlay says what has been removed.

The kernel's are devices and an extended attribute. fuse-overlayfs has names as well, as OCI images
do, for file systems that cannot have the others; no container can use such names in it.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import msgspec

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
