"""Bounds for a call: processor time and memory."""

import contextlib
import resource
import signal
from collections.abc import Iterator
from types import FrameType

SECONDS = 3.0
MEBIBYTES = 300


class TooSlowError(AssertionError):
    """It took more processor time than it may."""


@contextlib.contextmanager
def limited(seconds: float = SECONDS, mebibytes: int = MEBIBYTES) -> Iterator[None]:
    """Let the block take so much processor time, whatever else the machine does, and memory.

    Beyond that it ends with a TooSlowError or a MemoryError. For the main thread.
    """

    def ring(number: int, frame: FrameType | None) -> None:
        raise TooSlowError(f"more than {seconds:g} s of processor time")

    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, ring)
    resource.setrlimit(resource.RLIMIT_AS, (size + (mebibytes << 20), hard))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
