"""Shows how far an image is, from its first byte to its last: got, then unpacked, in one bar."""

import time
from collections.abc import Callable

_INTERVAL = 0.1
_WIDTH = 20


class Bar:
    """A bar.

    It never goes back. Where the size is not known before, it stands still until all is here.
    """

    def __init__(
        self,
        name: str,
        show: Callable[[str], None],
        tell: Callable[[str], None] = lambda text: None,
        size: int = 0,
    ) -> None:
        """Prepare it.

        Args:
            name: The image's name.
            show: Shows a line in the place of the last one.
            tell: Tells those who wait for the same image.
            size: Bytes that are to be got; 0: it is not known.
        """
        self._name, self._show, self._tell, self._size = name, show, tell, size
        self._began = 0.0  # how much of the bar getting it takes
        self._shown = -1.0

    def got(self, count: int) -> None:
        """Show how many bytes are here."""
        self._began = 0.5
        if self._size:
            self._say(0.5 * min(1.0, count / self._size), f"{count >> 20} MiB are here")
        else:
            self._say(0.0, f"{count >> 20} MiB are here")

    def unpacked(self, count: int, total: int) -> None:
        """Show how many bytes of layers are unpacked."""
        share = count / total if total else 1.0
        text = f"{count >> 20} of {total >> 20} MiB are unpacked"
        self._say(self._began + (1 - self._began) * min(1.0, share), text)

    def _say(self, share: float, text: str) -> None:
        now = time.monotonic()
        if now - self._shown < _INTERVAL and share < 1:
            return
        self._shown = now
        full = int(share * _WIDTH)
        bar = "#" * full + "." * (_WIDTH - full)
        self._tell(text)
        self._show(f"{share * 100:3.0f}% [{bar}] {self._name}: {text}")
