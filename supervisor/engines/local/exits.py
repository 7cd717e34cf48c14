"""The exit status of a process that somebody else reaps.

It is there twice: in proc(5) as long as the process is a zombie, if the kernel lets us see it, and
from Linux 6.15 on in the pidfd when it has been reaped.
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

_REAPED, _LOOKS = 2.0, 0.02

UNKNOWN = Ending(
    -1, "exited", "its exit status is known to the engine alone: this kernel is older than 6.15"
)


class SomebodysChild:
    """A process that is another one's child.

    Attributes:
        pid: Its process id.
        ending: How it has ended, if it has; `UNKNOWN` if nobody tells us.
    """

    def __init__(self, pid: int) -> None:
        """Take hold of it.

        Raises:
            OSError: It is gone.
        """
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self.ending: Ending | None = None
        self._lock = trio.Lock()

    @property
    def over(self) -> bool:
        """Whether it has ended, noticed or not."""
        if self.ending is None and self._pidfd >= 0:
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            return bool(poller.poll(0))
        return True

    async def ended(self) -> Ending:
        """Wait for its end."""
        async with self._lock:  # a descriptor has one task at most that waits for it
            if self.ending is None:
                await trio.lowlevel.wait_readable(self._pidfd)
                self.ending = await self._seen()
        return self.ending

    async def _seen(self) -> Ending:
        """Return how it has ended.

        One that has not begun its program is shown to nobody as a zombie, as it was no debugger's
        either: that one has to be reaped first, and no event tells us when it is.
        """
        with trio.move_on_after(_REAPED):
            while self._is_zombie:
                if (ending := self._look()) is not UNKNOWN:
                    return ending
                await trio.sleep(_LOOKS)
        return self._look()  # it may have been reaped right after the last one

    @property
    def _is_zombie(self) -> bool:
        try:
            signal.pidfd_send_signal(self._pidfd, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    def _look(self) -> Ending:
        status = _of_reaped(self._pidfd)
        if status is None:
            status = _of_zombie(self.pid, self._pidfd)
        if status is None:
            return UNKNOWN
        code = os.waitstatus_to_exitcode(status)
        return exited(code if code >= 0 else 128 - code)

    def kill(self) -> None:
        """Send it SIGKILL; if it is the first of a PID namespace all others there end with it."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._pidfd)
        self._pidfd = -1


def _of_reaped(pidfd: int) -> int | None:
    """Return the wait status of a process that was reaped; None: it was not, or nobody knows."""
    info = bytearray(_INFO.pack(_EXIT, 0))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:  # before 6.13, or gone in a kernel before 6.15
        return None
    mask, status = _INFO.unpack(info)
    return status if mask & _EXIT else None


def _of_zombie(pid: int, pidfd: int) -> int | None:
    """Return the wait status of a process that has ended and was not reaped yet.

    Who may not see it is shown 0: the same permission decides about its namespaces.
    """
    try:
        with suppress(FileNotFoundError):  # an ended one has none
            os.readlink(f"/proc/{pid}/ns/mnt")
        with open(f"/proc/{pid}/stat", "rb") as file:
            status = int(file.read().rpartition(b")")[2].split()[49])
        signal.pidfd_send_signal(pidfd, 0)  # it is still the one that has this pid
    except (OSError, ValueError, IndexError):
        return None
    return status
