"""How a container's first process ended, if another process reaps it."""

import os
import select
import signal
from contextlib import suppress

import trio

from scrun.model.states import Ending, exited, taken
from scrun.supervisor.children.statuses import status_of

UNKNOWN = Ending(
    -1, "exited", "only the container engine knows its exit status: this kernel is older than 6.15"
)

_LINE = 16


class ForeignChild:
    """A process that is a child of another one.

    Attributes:
        pid: Its process id.
        ending: How it ended, if it has; `UNKNOWN` if the status cannot be read.
    """

    def __init__(self, pid: int, pidfd: int | None = None) -> None:
        """Open a pidfd for it.

        Args:
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
        os.close(self._pidfd)
        self._pidfd = -1


class ToldChild(ForeignChild):
    """A child of the `scrun run` that has made it, which writes its exit status to a pipe."""

    def __init__(self, pid: int, pidfd: int, told: int) -> None:
        """Know where its status will be.

        Args:
            pidfd: Its pidfd; owned from now on.
            told: The pipe; its owner closes it.
        """
        super().__init__(pid, pidfd)
        self._told = told

    async def ended(self) -> Ending:
        async with self._lock:
            if self.ending is None:
                await trio.lowlevel.wait_readable(self._told)
                if line := os.read(self._told, _LINE).strip():
                    self.ending = exited(int(line))
                else:
                    self.kill()
                    text = "the container was ended: its `scrun run` was killed"
                    self.ending = taken("scrun-failure", text)
        return self.ending


def _ending_of(status: int) -> Ending:
    code = os.waitstatus_to_exitcode(status)
    return exited(code if code >= 0 else 128 - code)
