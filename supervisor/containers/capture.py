"""Captures the output of containers of `run --detach`, which nobody reads.

The supervisor writes the output into a file of the record; `logs` and `attach` read it there. The
file is the buffer: each reader has its own position, so a slow one delays nobody. Its size is
limited (`supervisor.log.limited`).
"""

import fcntl
import os
import stat
import struct
import termios
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, suppress

import trio

from scrun.model.record import OUTPUT, TIMES
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.log.limited import LimitedFile

_PIECE = 64 * 1024
_TIMES_PART = 16  # of the limit: by default some hours in which each second has output


class Followed:
    """A growing file that others follow.

    Attributes:
        path: Its path.
        file: The file, if its size is limited.
        ended: Whether it is complete.
    """

    def __init__(self, path: str, file: LimitedFile | None = None) -> None:
        """Begin with an empty file.

        Args:
            path: Its path.
            file: The file, if its size is limited.
        """
        self.path = path
        self.file = file
        self.ended = False
        self._more = trio.Event()

    def grew(self) -> None:
        """Wake the readers: there is more to read."""
        self._more.set()
        self._more = trio.Event()

    async def more(self) -> None:
        """Wait until it has grown, or ended."""
        if not self.ended:
            await self._more.wait()

    def end(self) -> None:
        """Tell the readers that the file is complete."""
        self.ended = True
        self._more.set()

    async def read(self, *, from_now: bool) -> AsyncGenerator[bytes, None]:
        """Yield the content and all that is added, until the end; close it with `aclosing`.

        A slow reader misses what the limit discards meanwhile.

        Args:
            from_now: Skip what is in the file already.
        """
        generation, fd = self._open(self._generation if from_now else 0)
        try:
            offset = os.fstat(fd).st_size if from_now else 0
            while True:
                more, ended = self._more, self.ended
                offset = min(offset, os.fstat(fd).st_size)  # a full disk truncates it
                while piece := os.pread(fd, _PIECE, offset):
                    offset += len(piece)
                    yield piece
                if generation < self._generation:
                    os.close(fd)
                    fd = -1
                    generation, fd = self._open(generation + 1)
                    offset = 0
                elif ended:
                    return
                else:
                    await more.wait()
        finally:
            if fd >= 0:
                os.close(fd)

    @property
    def _generation(self) -> int:
        return self.file.generation if self.file else 0

    def _open(self, wanted: int) -> tuple[int, int]:
        """Open the oldest file that still exists, starting at a generation."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        newest = self._generation
        if wanted < newest:
            with suppress(FileNotFoundError):
                return newest - 1, os.open(self.path + ".1", flags)
        return newest, os.open(self.path, flags)


def _is_awaited(fd: int) -> bool:
    """Tell whether somebody may read a descriptor to its end: a terminal, a pipe or a socket.

    `id=$(scrun run --detach …)` would last as long as the container, and so would an ssh.
    """
    return os.isatty(fd) or _is_socket(fd) or stat.S_ISFIFO(os.fstat(fd).st_mode)


def _is_socket(fd: int) -> bool:
    return stat.S_ISSOCK(os.fstat(fd).st_mode)


def capture(
    stdio: Stdio, directory: str, limit: int, report: Callable[[str], None], *, terminal: bool
) -> "CapturedOutput | None":
    """Capture what a container would write to a terminal, a pipe or a socket.

    Args:
        stdio: The descriptors of `run`; those that are captured get replaced.
        directory: The container's record.
        limit: How many bytes to keep.
        report: Called with a message when output is lost.
        terminal: Whether the container wants a terminal.

    Returns:
        The output; None if nothing is captured.

    Raises:
        OSError: A terminal, pipe or file cannot be opened.
    """
    captured = CapturedOutput(os.path.join(directory, OUTPUT), limit, report)
    return captured if captured.connect(stdio, terminal=terminal) else None


class CapturedOutput:
    """The output of one container.

    Attributes:
        output: The file that it goes to.
        terminal: Whether the container has a terminal, which is ours then.
    """

    def __init__(self, path: str, limit: int, report: Callable[[str], None]) -> None:
        """Prepare; nothing is captured yet.

        Args:
            path: The file for the output.
            limit: How many bytes to keep.
            report: Called with a message when output is lost.
        """
        self._limit = limit
        self._report = report
        self._reported: set[str] = set()
        self.output = Followed(path)
        self.terminal = False
        self._source: trio.lowlevel.FdStream | None = None
        self._typing = trio.Lock()
        self._fd = -1
        self._times: LimitedFile | None = None
        self._second = 0

    def connect(self, stdio: Stdio, *, terminal: bool) -> bool:
        """Replace a container's descriptors that are not files.

        Args:
            stdio: The descriptors of `run`.
            terminal: Whether the container wants a terminal: it gets one of ours.

        Returns:
            Whether anything is captured: then run `capture`.

        Raises:
            OSError: A terminal, pipe or file cannot be opened.
        """
        captured = (0, 1, 2) if terminal else [fd for fd in (1, 2) if _is_awaited(stdio.fds[fd])]
        with ExitStack() as undo:  # a failure half-way closes what was opened

            def ours(fd: int) -> int:
                undo.callback(os.close, fd)
                return fd

            replaced = {}
            if captured:
                file = LimitedFile(self.output.path, self._limit)
                undo.callback(file.close)
                times = LimitedFile(self.output.path + TIMES, self._limit // _TIMES_PART)
                undo.callback(times.close)
                source, end = map(ours, os.openpty() if terminal else os.pipe())
                replaced = {number: ours(os.dup(end)) for number in captured}
            if not terminal and (os.isatty(stdio.fds[0]) or _is_socket(stdio.fds[0])):
                # the terminal's other programs would compete for the input; and somebody may wait
                # for the end of the socket
                replaced[0] = ours(os.open("/dev/null", os.O_RDONLY))
            undo.pop_all()
        stdio.replace(replaced, terminal=terminal)
        if captured:
            os.close(end)
            self.terminal, self._fd, self.output.file = terminal, source, file
            self._times = times
        return bool(captured)

    async def capture(self) -> None:
        """Write the output to the file, until its last writer is gone."""
        self._source = trio.lowlevel.FdStream(self._fd)
        try:
            async with self._source:
                async for piece in self._source:
                    self._put(piece)
                    self.output.grew()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # EIO is a terminal's end of file
        finally:
            self._source = None  # the number may be reused from now on
            for file in (self.output.file, self._times):
                if file is not None:
                    file.close()
            self.output.end()

    def _put(self, piece: bytes | bytearray) -> None:
        """Append to the file; on a full disk output is lost, and the container goes on."""
        if (file := self.output.file) is None:
            return
        self._note_time(file.offset)
        before = file.lost
        if (error := file.write(piece)) is not None:
            self._report_once(f"output is lost: {file.path}: {error.strerror}")
        elif file.lost > before:
            self._report_once(
                f"the output exceeds {self._limit >> 20} MiB, so its oldest part is discarded; to "
                "keep more, raise output_limit in the section [log] of scrun.toml"
            )

    def _note_time(self, offset: int) -> None:
        """Record when this was written, to the second: for `logs --since`."""
        now = int(time.time())
        if self._times is not None and now != self._second:
            self._second = now
            self._times.write(b"%d %d\n" % (now, offset))

    def _report_once(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self._report(text)

    async def write(self, data: bytes) -> None:
        """Write input to the terminal."""
        source = self._source
        if source is not None and self.terminal:
            try:
                async with self._typing:  # several may be attached
                    await source.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # it ends

    def resize(self, rows: int, columns: int) -> None:
        """Set the terminal's size (ioctl_tty(2))."""
        if self.terminal and self._source is not None:
            try:
                fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            except OSError:
                pass  # it ends
