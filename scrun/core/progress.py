"""Says how far something is: in a bar at a terminal, else in a line now and then."""

import time
from collections.abc import Callable
from typing import Protocol

BETWEEN_LINES = 10.0
"""Seconds between two lines, and before the first one: what takes less time has none."""

_WIDTH = 20


class Say(Protocol):
    """Says in one line how far something is."""

    def __call__(self, text: str, share: float | None = None, /) -> None:
        """Say it; `share` is that of the whole, from 0 to 1, if it is known."""


def with_bar(text: str, share: float | None) -> str:
    """Return a line for a terminal."""
    if share is None:
        return text
    share = max(0.0, min(share, 1.0))
    full = int(share * _WIDTH)
    bar = "#" * full + "." * (_WIDTH - full)
    return f"{share * 100:3.0f}% [{bar}] {text}"


class Rarely:
    """Passes on at most one text in ten seconds, and never an empty one."""

    def __init__(
        self, tell: Callable[[str], None], clock: Callable[[], float] | None = None
    ) -> None:
        """`tell` gets the texts."""
        self._tell, self._clock = tell, clock or time.monotonic
        self._next = self._clock() + BETWEEN_LINES

    def __call__(self, text: str, share: float | None = None, /) -> None:
        if text and self._clock() >= self._next:
            self._next = self._clock() + BETWEEN_LINES
            self._tell(text)
