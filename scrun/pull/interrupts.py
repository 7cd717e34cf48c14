"""Signals while something is being made that must not stay half made."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A signal has asked the command to end: `scrun.main` exits with `status`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise `Interrupted` at a signal, so that what was begun is undone; once in the block."""

    def end(number: int, frame: FrameType | None) -> None:
        for each in _ENDING:  # nothing may interrupt the cleanup
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    before = [signal.signal(number, end) for number in _ENDING]
    try:
        yield
    finally:
        for number, handler in zip(_ENDING, before, strict=True):
            signal.signal(number, handler)
