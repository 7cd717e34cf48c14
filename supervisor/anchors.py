"""The supervisor's end of an anchor (see `scrun.anchor`)."""

import contextlib
import os
import signal
from collections.abc import AsyncIterator

import trio


class Anchor:
    """The process that an engine watches.

    It is alive as long as its socket is: nobody else holds that end. So its death is told by
    end of file, and takes no pidfd.

    Attributes:
        pid: Its process id.
    """

    def __init__(self, pid: int, fd: int) -> None:
        """Take the socket over.

        Args:
            pid: The anchor's.
            fd: Our end of the pair; closed by `close`.
        """
        self.pid = pid
        self._fd = fd
        self._stream = trio.lowlevel.FdStream(fd)

    async def signals(self) -> AsyncIterator[signal.Signals]:
        """Yield the signals that it got, until it is dead."""
        rest = b""
        while True:
            try:
                data = await self._stream.receive_some()
            except trio.BrokenResourceError:  # it died with a status of ours unread
                return
            if not data:
                return
            *names, rest = (rest + data).split(b"\n")
            for name in names:
                yield signal.Signals["SIG" + name.decode()]

    def end(self, status: int) -> None:
        """Make it exit with a status; no matter if it is dead already.

        A line into a socket that has carried nothing before does not block.
        """
        with contextlib.suppress(OSError):
            os.write(self._fd, b"%d\n" % status)

    async def close(self) -> None:
        """Close our end. An anchor that has not been ended takes it for our death."""
        await self._stream.aclose()
