"""What a container writes when nobody is there to read it: `run --detach` from a terminal.

The output goes through the supervisor into a file of the record, and from there to whoever asks
for it (`logs`, `attach`). The file is the buffer: each reader has a place of its own in it, so a
slow one holds nobody up, and none misses anything.
"""

import fcntl
import os
import struct
import termios
from collections.abc import AsyncGenerator
from contextlib import ExitStack

import trio

from scrun.record import OUTPUT
from supervisor.stdio import Stdio

_PIECE = 64 * 1024
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Followed:
    """A file that grows, and those who read it meanwhile.

    Attributes:
        path: Its path.
        ended: Whether it will not grow any more.
    """

    def __init__(self, path: str) -> None:
        """Nothing is written yet."""
        self.path = path
        self.ended = False
        self._more = trio.Event()

    def grew(self) -> None:
        """Tell the readers that there is more."""
        self._more.set()
        self._more = trio.Event()

    async def more(self) -> None:
        """Wait until it has grown, or ended."""
        if not self.ended:
            await self._more.wait()

    def end(self) -> None:
        """Tell them that this was all."""
        self.ended = True
        self._more.set()

    async def read(self, *, from_now: bool) -> AsyncGenerator[bytes, None]:
        """Yield what is in it and what comes, until the end; to be closed (`aclosing`).

        Args:
            from_now: Leave out what is in it already.
        """
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            place = os.fstat(fd).st_size if from_now else 0
            while True:
                more, ended = self._more, self.ended
                while piece := os.pread(fd, _PIECE, place):
                    place += len(piece)
                    yield piece
                if ended:
                    return
                await more.wait()
        finally:
            os.close(fd)


def keep(stdio: Stdio, directory: str, *, terminal: bool) -> "KeptOutput | None":
    """Keep what a container would write to a terminal.

    Args:
        stdio: The descriptors of `run`; where they are a terminal they become ours.
        directory: The container's record.
        terminal: Whether the container wants a terminal.

    Returns:
        Its output; None when that goes elsewhere.

    Raises:
        OSError: No terminal, pipe or file can be had.
    """
    kept = KeptOutput(os.path.join(directory, OUTPUT))
    return kept if kept.connect(stdio, terminal=terminal) else None


class KeptOutput:
    """The output of one container.

    Attributes:
        output: The file that it goes to.
        terminal: Whether the container has a terminal, which is ours then.
    """

    def __init__(self, path: str) -> None:
        """Nothing is kept yet.

        Args:
            path: The file for it.
        """
        self.output = Followed(path)
        self.terminal = False
        self._source: trio.lowlevel.FdStream | None = None
        self._typing = trio.Lock()
        self._fd = -1
        self._file = -1

    def connect(self, stdio: Stdio, *, terminal: bool) -> bool:
        """Put ourselves behind a container's descriptors, where those are a terminal.

        Args:
            stdio: The descriptors of `run`.
            terminal: Whether the container wants a terminal: it gets one of ours.

        Returns:
            Whether anything is kept: then `keep` has to be run.

        Raises:
            OSError: No terminal, pipe or file can be had.
        """
        kept = (0, 1, 2) if terminal else [fd for fd in (1, 2) if os.isatty(stdio.fds[fd])]
        with ExitStack() as undo:  # nothing is left open by a half of it

            def ours(fd: int) -> int:
                undo.callback(os.close, fd)
                return fd

            replaced = {}
            if kept:
                file = ours(os.open(self.output.path, _FLAGS, 0o600))
                source, end = map(ours, os.openpty() if terminal else os.pipe())
                replaced = {number: ours(os.dup(end)) for number in kept}
            if not terminal and os.isatty(stdio.fds[0]):
                # whose other programs would compete for what is typed
                replaced[0] = ours(os.open("/dev/null", os.O_RDONLY))
            undo.pop_all()
        stdio.replace(replaced, terminal=terminal)
        if kept:
            os.close(end)
            self.terminal, self._fd, self._file = terminal, source, file
        return bool(kept)

    async def keep(self) -> None:
        """Write it down, until its last writer is gone."""
        self._source = trio.lowlevel.FdStream(self._fd)
        try:
            async with self._source:
                async for piece in self._source:
                    self._put(self._file, piece)
                    self.output.grew()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # EIO is a terminal's end of file
        finally:
            self._source = None  # its number may be somebody else's from now on
            os.close(self._file)
            self.output.end()

    @staticmethod
    def _put(file: int, piece: bytes | bytearray) -> None:
        """Add to the file; on a full disk output is lost, and the container goes on."""
        try:
            while piece:
                piece = piece[os.write(file, piece) :]
        except OSError:
            pass

    async def write(self, data: bytes) -> None:
        """Type something at the terminal."""
        source = self._source
        if source is not None and self.terminal:
            try:
                async with self._typing:  # several may be attached
                    await source.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # it ends

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal another size (ioctl_tty(2))."""
        if self.terminal and self._source is not None:
            try:
                fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            except OSError:
                pass  # it ends
