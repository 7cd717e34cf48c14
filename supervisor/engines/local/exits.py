"""How a container's first process ended, if another process reaps it."""

import os
import select
import signal
from contextlib import suppress

import trio

from scrun.model.states import Ending, exited
from scrun.supervisor.children.statuses import status_of

UNKNOWN = Ending(
    -1, "exited", "only the container engine knows its exit status: this kernel is older than 6.15"
)


class ForeignChild:
    """A process that is a child of another one.

    Attributes:
        pid: Its process id.
        ending: How it ended, if it has; `UNKNOWN` if the status cannot be read.
    """

    def __init__(self, pid: int, pidfd: int | None = None) -> None:
        """Open a pidfd for it.

        Args:
            pid: Its process id.
            pidfd: Its pidfd, if there is one; owned from now on.

        Raises:
            OSError: It is gone.
        """
        self.pid = pid
        self._pidfd = os.pidfd_open(pid) if pidfd is None else pidfd
        self.ending: Ending | None = None
        self._lock = trio.Lock()

    @property
    def pidfd(self) -> int:
        """Its pidfd."""
        return self._pidfd

    @property
    def over(self) -> bool:
        """Whether it has ended, even if `ended` has not returned yet."""
        if self.ending is None and self._pidfd >= 0:
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            return bool(poller.poll(0))
        return True

    async def ended(self) -> Ending:
        """Wait for its end."""
        async with self._lock:  # trio lets only one task wait for a descriptor
            if self.ending is None:
                status = await status_of(self.pid, self._pidfd)
                self.ending = UNKNOWN if status is None else _ending_of(status)
        return self.ending

    def kill(self) -> None:
        """Send it SIGKILL; if it is pid 1 of a PID namespace, that ends all processes there."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Close the pidfd."""
        os.close(self._pidfd)
        self._pidfd = -1


def _ending_of(status: int) -> Ending:
    code = os.waitstatus_to_exitcode(status)
    return exited(code if code >= 0 else 128 - code)
