"""A file that tests change for a while, several at a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Change = Callable[[str | None], str | None]
"""Returns the content of a file that had another one; None: there is no such file."""


class ChangedFile:
    """A file with all the changes that count at the moment.

    They may begin and end in any order: the content is made anew from that before the first.
    """

    def __init__(self, path: Path) -> None:
        """Change nothing yet; `path` is the file, which there need not be."""
        self.path = path
        self._before: str | None = None
        self._changes: list[Change] = []

    def begin(self, change: Change) -> Change:
        """Change it; return what `end` takes."""
        if not self._changes:
            self._before = self.path.read_text() if self.path.exists() else None
        own: Change = lambda text: change(text)  # noqa: E731 - the same one may count twice
        self._changes.append(own)
        self._write()
        return own

    def end(self, own: Change) -> None:
        """Undo one change; the others stay."""
        self._changes.remove(own)
        self._write()

    @contextmanager
    def changed(self, change: Change) -> Iterator[None]:
        """Change it while the block runs."""
        own = self.begin(change)
        try:
            yield
        finally:
            self.end(own)

    def change_for_good(self, change: Change) -> None:
        """Change it, whatever else is changed now, and does not stay."""
        if not self._changes:
            self._before = self.path.read_text() if self.path.exists() else None
        self._before = change(self._before)
        self._write()

    def _write(self) -> None:
        text = self._before
        for change in self._changes:
            text = change(text)
        if text is None:
            self.path.unlink(missing_ok=True)
        else:
            self.path.write_text(text)
