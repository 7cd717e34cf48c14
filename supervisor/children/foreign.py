"""Processes that another supervisor has started, which has died, or that another process reaps.

There are two sources for the wait status of those: proc(5) while the process is a zombie, if the
kernel lets us read it, and from Linux 6.15 on the pidfd, once the process has been reaped.
"""

import fcntl
import os
import signal
import struct
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


# struct pidfd_info of linux/pidfd.h, in its first size: mask, …, exit_code
_INFO = struct.Struct("=Q52xi")
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_EXIT = 1 << 3

_REAPED, _PAUSE = 2.0, 0.02


async def status_of(pid: int, pidfd: int) -> int | None:
    """Wait for the end of a process, and return its wait status (waitpid(2)), if it can be read.

    The kernel shows the status of a process that has not executed its program yet to nobody
    (ptrace(2), access mode): it has to be reaped first, and no event tells us when that is.
    """
    await trio.lowlevel.wait_readable(pidfd)
    with trio.move_on_after(_REAPED):
        while _is_zombie(pidfd):
            if (status := _read(pid, pidfd)) is not None:
                return status
            await trio.sleep(_PAUSE)
    return _read(pid, pidfd)  # it may have been reaped right after the last attempt


def _is_zombie(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _read(pid: int, pidfd: int) -> int | None:
    status = _of_reaped(pidfd)
    return _of_zombie(pid, pidfd) if status is None else status


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
