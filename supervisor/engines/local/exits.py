"""The exit status of a process that another process reaps.

There are two sources: proc(5) while the process is a zombie, if the kernel lets us read it, and
from Linux 6.15 on the pidfd, once the process has been reaped.
"""

import fcntl
import os
import select
import signal
import struct
from contextlib import suppress

import trio

from scrun.model.states import Ending, exited

# struct pidfd_info of linux/pidfd.h, in its first size: mask, …, exit_code
_INFO = struct.Struct("=Q52xi")
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_EXIT = 1 << 3

_REAPED, _PAUSE = 2.0, 0.02

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
                await trio.lowlevel.wait_readable(self._pidfd)
                self.ending = await self._wait_for_ending()
        return self.ending

    async def _wait_for_ending(self) -> Ending:
        """Return how it ended.

        The kernel shows the status of a process that has not executed its program yet to nobody
        (ptrace(2), access mode): it has to be reaped first, and no event tells us when that is.
        """
        with trio.move_on_after(_REAPED):
            while self._is_zombie:
                if (ending := self._read_ending()) is not UNKNOWN:
                    return ending
                await trio.sleep(_PAUSE)
        return self._read_ending()  # it may have been reaped right after the last attempt

    @property
    def _is_zombie(self) -> bool:
        try:
            signal.pidfd_send_signal(self._pidfd, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    def _read_ending(self) -> Ending:
        status = _of_reaped(self._pidfd)
        if status is None:
            status = _of_zombie(self.pid, self._pidfd)
        if status is None:
            return UNKNOWN
        code = os.waitstatus_to_exitcode(status)
        return exited(code if code >= 0 else 128 - code)

    def kill(self) -> None:
        """Send it SIGKILL; if it is pid 1 of a PID namespace, that ends all processes there."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Close the pidfd."""
        os.close(self._pidfd)
        self._pidfd = -1


def _of_reaped(pidfd: int) -> int | None:
    """Return the wait status of a reaped process; None if it is not reaped, or not known."""
    info = bytearray(_INFO.pack(_EXIT, 0))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:  # before 6.13, or gone in a kernel before 6.15
        return None
    mask, status = _INFO.unpack(info)
    return status if mask & _EXIT else None


def _of_zombie(pid: int, pidfd: int) -> int | None:
    """Return the wait status of a zombie, or None.

    The kernel shows 0 to those without permission, which reading its namespaces needs as well.
    """
    try:
        with suppress(FileNotFoundError):  # a zombie has no namespaces
            os.readlink(f"/proc/{pid}/ns/mnt")
        with open(f"/proc/{pid}/stat", "rb") as file:
            status = int(file.read().rpartition(b")")[2].split()[49])
        signal.pidfd_send_signal(pidfd, 0)  # the pid still belongs to this process
    except (OSError, ValueError, IndexError):
        return None
    return status
