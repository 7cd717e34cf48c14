"""Files instead of standard input, output and error.

The name of a file may depend on the job, which does not exist before the container is created.
Then the file has another name until the program is about to start.
"""

import os
import shutil
from collections.abc import Callable

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC


class Redirected:
    """The files."""

    def __init__(self, *, append: bool) -> None:
        # `append`: what is in a file stays there
        self._append = append
        self._how = _WRITE | (os.O_APPEND if append else os.O_TRUNC)
        self._late: list[tuple[str, str]] = []

    @property
    def any_late(self) -> bool:
        """Whether some have no names yet."""
        return bool(self._late)

    def use(self, number: int, name: str) -> None:
        """Use a file.

        `number`: 0, 1 or 2.

        Raises:
            OSError: It cannot be opened.
        """
        fd = os.open(name, self._how if number else os.O_RDONLY | os.O_CLOEXEC, 0o666)
        _put(fd, number)

    def use_later(self, number: int, pattern: str) -> None:
        """Use a file for output that gets its name later.

        Args:
            number: 1 or 2.
            pattern: Its name, with parts that are not known yet behind percent signs.

        Raises:
            OSError: No file can be made in its directory.
        """
        directory = os.path.dirname(pattern.partition("%")[0])
        name = os.path.join(directory, f".{os.getpid()}.{number}.{os.urandom(4).hex()}")
        try:
            fd = os.open(name, _WRITE | os.O_EXCL | os.O_APPEND, 0o666)
        except OSError as error:
            raise OSError(error.errno, error.strerror, pattern) from None
        _put(fd, number)
        self._late.append((name, pattern))

    def name(self, name_of: Callable[[str], str]) -> None:
        """Give the files their names.

        `name_of` returns that of a pattern.

        Raises:
            OSError: One cannot have it.
        """
        for temporary, pattern in self._late:
            name = name_of(pattern)
            if self._append and os.path.exists(name):
                _put_before(name, temporary)
            try:
                os.rename(temporary, name)
            except OSError as error:
                raise OSError(error.errno, error.strerror, name) from None
        self._late.clear()

    def discard(self) -> None:
        """Remove the files that have got no name."""
        for temporary, _ in self._late:
            try:
                os.unlink(temporary)
            except OSError:
                pass
        self._late.clear()


def _put(fd: int, number: int) -> None:
    os.dup2(fd, number)
    os.close(fd)


def _put_before(old: str, new: str) -> None:
    """Put what is in a file before what is in another one, which has a few messages."""
    with open(old, "rb") as source, open(new, "rb+") as target:
        said = target.read()
        target.seek(0)
        shutil.copyfileobj(source, target)
        target.write(said)
