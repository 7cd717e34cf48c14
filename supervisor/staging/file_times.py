"""Times to which those of files are compared: whatever changes later has a later one.

The kernel's file times are some milliseconds behind the clock, and some file systems keep seconds.
Everything here blocks: call it in a worker thread.
"""

import os
import time
from collections.abc import Callable

_COARSE = 5  # CLOCK_REALTIME_COARSE, from which the kernel takes file times
_PAUSE = 0.002
_LONGEST = 3.0  # somebody may set the clock back


def time_here() -> int:
    """Return a time of this machine's clock (nanoseconds), when file times are past it."""
    now = time.time_ns()
    _pass(now, lambda: time.clock_gettime_ns(_COARSE))
    return now


def time_at(directory: str) -> int:
    """Return a time of a directory's file system (nanoseconds), when times there are past it."""
    now = mark_at(directory)
    _pass(now, lambda: mark_at(directory))
    return now


def mark_at(directory: str) -> int:
    """Return the same at once: what changes in the next milliseconds may have that time, too."""
    os.utime(directory)
    return os.stat(directory).st_ctime_ns


def _pass(now: int, clock: Callable[[], int]) -> None:
    end = time.monotonic() + _LONGEST
    while clock() <= now and time.monotonic() < end:
        time.sleep(_PAUSE)
