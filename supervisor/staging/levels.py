"""Walks through two trees at once, without following links."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence

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
        """The directory of the copy."""
        return self._here[0]

    @property
    def target(self) -> int:
        """The directory of the original."""
        return self._here[1]

    @contextlib.contextmanager
    def inside(self, name: str, finish: Callable[[int, int], None]) -> Iterator[None]:
        """Enter a directory for the block, and return.

        Args:
            finish: Called with both at the end, as the original's final mode may forbid the way
                back.

        Raises:
            Vanished: The copy has no such directory any more.
            OSError: It cannot be entered, or the way back leads elsewhere.
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
        """Open a directory of the original, by the way to it from where this began.

        Raises:
            OSError: It is not there, or a link leads there.
        """
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
