"""Commands that run when all are dead: we, our keeper, and any successor.

A shell reads from a socket. We have the other end, and so has the keeper. At its end of file the
command is executed; at a line there is nothing to do any more.
"""

import os
import select
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from scrun.supervisor.children.processes import ChildEnv, child

_CANCELLER = 'read -r _ || exec "$@"'


@asynccontextmanager
async def canceller(
    argv: Sequence[str], child_env: ChildEnv, hold: Callable[[int], None]
) -> AsyncIterator[None]:
    """Run a command if we, and all who could adopt, die while the block runs.

    Args:
        hold: Keeps a duplicate of our end, before anybody could see its end of file.

    Raises:
        OSError: There is no shell.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        hold(ours.fileno())
        words = ["/bin/sh", "-c", _CANCELLER, "sh", *argv]
        async with child(words, child_env, stdin=theirs.fileno(), dies_with_us=False):
            theirs.close()
            try:
                yield
            finally:
                dismiss(ours.fileno())


def dismiss(fd: int) -> None:
    """Let a canceller end without its command; the other end stays the caller's."""
    with suppress(OSError):
        os.write(fd, b"\n")  # into an empty socket: this does not block


def is_heard(line: int) -> bool:
    """Return whether anybody has the other end of a socket."""
    there = select.poll()
    there.register(line, 0)
    return not there.poll(0)  # else it has hung up
