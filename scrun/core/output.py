"""Write to standard output, which may be a terminal, closed, or without a reader."""

import posix

from scrun.core.ready import ready
from scrun.core.text import printable_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def say(text: bytes) -> None:
    """Print text on standard output; escape control characters if that is a terminal.

    Ids, paths and annotations are untrusted, and root may get the answer of another user's
    supervisor.
    """
    if posix.isatty(1):
        text = printable_lines(text)
    write(text)


def write(content: bytes) -> None:
    """Write to standard output; if it is closed or has no reader, ignore that.

    Not by `sys.stdout`: without a descriptor it is missing, and nobody flushes it.
    """
    while content:
        try:
            content = content[posix.write(1, content) :]
        except BlockingIOError:  # a pipe or terminal that somebody else has made non-blocking
            ready([], [1])
        except OSError as error:
            if error.errno in (9, 32):  # closed, as in `scrun state X | true`
                return
            raise OSError(error.errno, error.strerror, "standard output") from None


def discard(*fds: int) -> None:
    """Lead descriptors to /dev/null."""
    null = posix.open("/dev/null", posix.O_RDWR | posix.O_CLOEXEC)
    for fd in fds:
        posix.dup2(null, fd)
    if null in fds:  # which was closed
        posix.set_inheritable(null, True)
    else:
        posix.close(null)


def is_read(beside: "Iterable[int]" = (), seconds: "float | None" = None) -> bool:
    """Wait for descriptors, or some seconds; return False once nobody can read standard output."""
    return 1 not in ready(beside, seconds=seconds, ends=[1])[0]
