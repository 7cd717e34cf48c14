"""Processes that another supervisor has started, which has died."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from signal import pidfd_send_signal

import trio

from scrun.supervisor.children.processes import Child


class ForeignProcess(Child):
    """A process that is not a child of ours: we have its pidfd, but will not get its status.

    Attributes:
        name: Its name in the log.
    """

    def __init__(self, pid: int, pidfd: int, name: str) -> None:
        """Take over its pidfd."""
        self.pid = pid
        self.name = name
        self._pidfd = pidfd
        self._over = False

    async def wait(self) -> int:
        """Wait for its end; return 1, for nobody tells us."""
        if not self._over:
            await trio.lowlevel.wait_readable(self._pidfd)
            self._over = True
        return 1

    @property
    def ended(self) -> bool:
        """Whether we know that it has ended."""
        return self._over

    def signal(self, number: int) -> None:
        """Send a signal; does nothing if it has ended."""
        with suppress(ProcessLookupError):
            pidfd_send_signal(self._pidfd, number)

    def signal_group(self, number: int) -> None:
        """Send a signal to it alone: the number of its group may be somebody else's by now."""
        self.signal(number)


@asynccontextmanager
async def foreign_process(
    pid: int, pidfd: int, name: str, *, grace: float
) -> AsyncIterator[ForeignProcess]:
    """Own a process for a block; it is ended when the block is left, as by `child`."""
    running = ForeignProcess(pid, pidfd, name)
    try:
        yield running
    finally:
        try:
            if not running.ended:
                await running.end(grace=grace)
        finally:
            os.close(pidfd)
