"""Waiting with a deadline for what has no event to wait for."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class TooLateError(AssertionError):
    """It was not in time."""


def wait_until(what: str, found: Callable[[], T], timeout: float = 10) -> T:
    """Call `found` until its answer is true, and return that.

    Raises:
        TooLateError: The last answer is in the message.
    """
    deadline = time.monotonic() + timeout
    pause = 0.005
    while not (answer := found()):
        if time.monotonic() > deadline:
            raise TooLateError(f"not within {timeout} s: {what} (last seen: {answer!r})")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    return answer


def wait_while(what: str, found: Callable[[], T], timeout: float = 10) -> None:
    """Call `found` until its answer is false.

    Raises:
        TooLateError: The last answer is in the message.
    """
    last: T | None = None

    def gone() -> bool:
        nonlocal last
        last = found()
        return not last

    try:
        wait_until(what, gone, timeout)
    except TooLateError:
        raise TooLateError(f"still there after {timeout} s: {what}: {last!r}") from None
