"""Walks through two trees at once, without following symbolic links; keeps hard links."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence

from scrun.core.trees import remove
from scrun.supervisor.staging.copies import OPEN, from_the_living


class Level:
    """A directory of the copy, with the same one of the original.

    Only these and their parents are open, however deep a tree is. The way back from further below
    is `..`, which needs the permission to search the directory. A directory with subdirectories
    has been searched already, and an empty one is left while its parent is open.

    Attributes:
        names: The way here from where it began.
    """

    def __init__(self, copied: str, original: str) -> None:
        self.names: tuple[str, ...] = ()
        self._original = original
        self._above: list[int] = []
        self._here = [os.open(copied, OPEN)]
        try:
            self._here.append(os.open(original, OPEN))
        except BaseException:
            self.close()
            raise

    @property
    def source(self) -> int:
        return self._here[0]

    @property
    def target(self) -> int:
        return self._here[1]

    @contextlib.contextmanager
    def inside(self, name: str, finish: Callable[[int, int], None]) -> Iterator[None]:
        """Enter a directory for the block, and return; Vanished if the copy has none any more.

        `finish` is called with both at the end, as the original's final mode may forbid the way
        back. OSError also if that leads elsewhere.
        """
        parent, grand = self._here, self._above
        before = [os.fstat(fd) for fd in parent]
        self._here, self._above = _opened(name, parent), parent
        _close(grand)
        names, self.names = self.names, (*self.names, name)
        yield
        self.names = names
        child = self._here
        if not parent:  # closed by a directory further below
            parent += _opened("..", child)
            if not all(map(os.path.samestat, before, map(os.fstat, parent))):
                _close(parent)
                raise OSError(errno.ESTALE, "its directory was moved meanwhile", name)
        self._here, self._above = parent, []
        try:
            finish(*child)
        finally:
            _close(child)

    @contextlib.contextmanager
    def original_at(self, names: Sequence[str]) -> Iterator[int]:
        """Open a directory of the original, by its way, without links, from where this began."""
        fd = os.open(self._original, OPEN)
        try:
            for name in names:
                inner = os.open(name, OPEN, dir_fd=fd)
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)

    def close(self) -> None:
        _close(self._here)
        _close(self._above)


def _opened(name: str, pair: list[int]) -> list[int]:
    with from_the_living(name):
        source = os.open(name, OPEN, dir_fd=pair[0])
    try:
        return [source, os.open(name, OPEN, dir_fd=pair[1])]
    except BaseException:
        os.close(source)
        raise


def _close(pair: list[int]) -> None:
    while pair:
        os.close(pair.pop())


_MOST = 100_000


class HardLinks:
    """The files with several names that have been brought back, as long as a name is missing."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], tuple[str, ...]] = {}
        self._left: dict[tuple[int, int], int] = {}

    def link(self, level: Level, name: str, new: os.stat_result, temporary: str) -> bool:
        """Make a name one of a file's that is there already; return whether that was done.

        `new` is what it is in the copy; `temporary` a name that may be used meanwhile.
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
