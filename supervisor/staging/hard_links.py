"""Which names of a tree are those of one file, so that they are that in another tree, too."""

import contextlib
import os

from scrun.core.trees import remove
from scrun.supervisor.staging.levels import Level

_MOST = 100_000


class HardLinks:
    """The files with several names that have been brought back, as long as a name is missing."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], tuple[str, ...]] = {}
        self._left: dict[tuple[int, int], int] = {}

    def link(self, level: Level, name: str, new: os.stat_result, temporary: str) -> bool:
        """Make a name one of a file's that is there already; return whether that was done.

        Args:
            new: What it is in the copy.
            temporary: A name that may be used meanwhile.
        """
        key = (new.st_dev, new.st_ino)
        if new.st_nlink < 2 or key not in self._first:
            return False
        *folders, first = self._first[key]
        device = os.fstat(level.target).st_dev
        done = False
        # not there any more; or the file system has no such links, or not so many of one file
        with contextlib.suppress(OSError), level.original_at(folders) as folder:
            remove(level.target, temporary, device)
            fds = {"src_dir_fd": folder, "dst_dir_fd": level.target}
            os.link(first, temporary, **fds, follow_symlinks=False)
            os.rename(temporary, name, src_dir_fd=level.target, dst_dir_fd=level.target)
            done = True
        self._left[key] -= 1
        if not self._left[key]:
            del self._first[key], self._left[key]
        return done

    def remember(self, level: Level, name: str, new: os.stat_result) -> None:
        """Note that a file has been brought back by one of its names."""
        if new.st_nlink > 1 and len(self._first) < _MOST:
            key = (new.st_dev, new.st_ino)
            self._first[key] = (*level.names, name)
            self._left[key] = new.st_nlink - 1
