"""How much room the changes of a container need, before the first of them is made."""

import os
import stat
from collections.abc import Sequence

from scrun.core.errors import StagingError
from scrun.supervisor.staging.whiteouts import Whiteouts, is_deletion

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
