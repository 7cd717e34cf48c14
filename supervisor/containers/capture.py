"""What a container writes when nobody is there to read it: that of `run --detach`.

The output goes through the supervisor into a file of the record, and from there to whoever asks
for it (`logs`, `attach`). The file is the buffer: each reader has a place of its own in it, so a
slow one holds nobody up. It is limited, as `supervisor.log.limited` has it.
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
_OF_TIMES = 16  # a part of the limit: by default some hours in which each second has output


class Followed:
    """A file that grows, and those who read it meanwhile.

    Attributes:
        path: Its path.
        ended: Whether it will not grow any more.
    """

    def __init__(self, path: str, file: LimitedFile | None = None) -> None:
        """Nothing is written yet.

        Args:
            path: Its path.
            file: It, if it is limited.
        """
        self.path = path
        self.file = file
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

        Who is too slow misses what the limit has taken away meanwhile.

        Args:
            from_now: Leave out what is in it already.
        """
        generation, fd = self._open(self._generation if from_now else 0)
        try:
            place = os.fstat(fd).st_size if from_now else 0
            while True:
                more, ended = self._more, self.ended
                place = min(place, os.fstat(fd).st_size)  # on a full disk it was cut off
                while piece := os.pread(fd, _PIECE, place):
                    place += len(piece)
                    yield piece
                if generation < self._generation:
                    os.close(fd)
                    fd = -1
                    generation, fd = self._open(generation + 1)
                    place = 0
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
        """Open the first of the files that is there still, from a generation on."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        newest = self._generation
        if wanted < newest:
            with suppress(FileNotFoundError):
                return newest - 1, os.open(self.path + ".1", flags)
        return newest, os.open(self.path, flags)


def _is_awaited(fd: int) -> bool:
    """Tell whether a terminal, a pipe or a socket: somebody reads there, to the end of file.

    `id=$(scrun run --detach …)` would last as long as the container, and so would an ssh.
    """
    return os.isatty(fd) or _is_socket(fd) or stat.S_ISFIFO(os.fstat(fd).st_mode)


def _is_socket(fd: int) -> bool:
    return stat.S_ISSOCK(os.fstat(fd).st_mode)


def capture(
    stdio: Stdio, directory: str, limit: int, say: Callable[[str], None], *, terminal: bool
) -> "CapturedOutput | None":
    """Keep what a container would write to a terminal, a pipe or a socket.

    Args:
        stdio: The descriptors of `run`; those that are become ours.
        directory: The container's record.
        limit: How many bytes of it are kept.
        say: Is told when some are lost, and why.
        terminal: Whether the container wants a terminal.

    Returns:
        Its output; None when that goes elsewhere.

    Raises:
        OSError: No terminal, pipe or file can be had.
    """
    kept = CapturedOutput(os.path.join(directory, OUTPUT), limit, say)
    return kept if kept.connect(stdio, terminal=terminal) else None


class CapturedOutput:
    """The output of one container.

    Attributes:
        output: The file that it goes to.
        terminal: Whether the container has a terminal, which is ours then.
    """

    def __init__(self, path: str, limit: int, say: Callable[[str], None]) -> None:
        """Nothing is kept yet.

        Args:
            path: The file for it.
            limit: How many bytes of it are kept.
            say: Is told when some are lost, and why.
        """
        self._limit = limit
        self._say = say
        self._told: set[str] = set()
        self.output = Followed(path)
        self.terminal = False
        self._source: trio.lowlevel.FdStream | None = None
        self._typing = trio.Lock()
        self._fd = -1
        self._times: LimitedFile | None = None
        self._second = 0

    def connect(self, stdio: Stdio, *, terminal: bool) -> bool:
        """Put ourselves behind a container's descriptors, where those are not a file.

        Args:
            stdio: The descriptors of `run`.
            terminal: Whether the container wants a terminal: it gets one of ours.

        Returns:
            Whether anything is kept: then `capture` has to be run.

        Raises:
            OSError: No terminal, pipe or file can be had.
        """
        kept = (0, 1, 2) if terminal else [fd for fd in (1, 2) if _is_awaited(stdio.fds[fd])]
        with ExitStack() as undo:  # nothing is left open by a half of it

            def ours(fd: int) -> int:
                undo.callback(os.close, fd)
                return fd

            replaced = {}
            if kept:
                file = LimitedFile(self.output.path, self._limit)
                undo.callback(file.close)
                times = LimitedFile(self.output.path + TIMES, self._limit // _OF_TIMES)
                undo.callback(times.close)
                source, end = map(ours, os.openpty() if terminal else os.pipe())
                replaced = {number: ours(os.dup(end)) for number in kept}
            if not terminal and (os.isatty(stdio.fds[0]) or _is_socket(stdio.fds[0])):
                # a terminal's other programs would compete for what is typed; and the other
                # direction of a socket may be what somebody waits for
                replaced[0] = ours(os.open("/dev/null", os.O_RDONLY))
            undo.pop_all()
        stdio.replace(replaced, terminal=terminal)
        if kept:
            os.close(end)
            self.terminal, self._fd, self.output.file = terminal, source, file
            self._times = times
        return bool(kept)

    async def capture(self) -> None:
        """Write it down, until its last writer is gone."""
        self._source = trio.lowlevel.FdStream(self._fd)
        try:
            async with self._source:
                async for piece in self._source:
                    self._put(piece)
                    self.output.grew()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # EIO is a terminal's end of file
        finally:
            self._source = None  # its number may be somebody else's from now on
            for file in (self.output.file, self._times):
                if file is not None:
                    file.close()
            self.output.end()

    def _put(self, piece: bytes | bytearray) -> None:
        """Add to the file; on a full disk output is lost, and the container goes on."""
        if (file := self.output.file) is None:
            return
        self._note_time(file.place)
        before = file.lost
        if (error := file.write(piece)) is not None:
            self._tell(f"output is lost: {file.path}: {error.strerror}")
        elif file.lost > before:
            self._tell(
                f"the output is longer than {self._limit >> 20} MiB, so the oldest of it goes "
                "(output_limit in the section [log] of scrun.toml)"
            )

    def _note_time(self, place: int) -> None:
        """Put down when this was written, to the second: for `logs --since`."""
        now = int(time.time())
        if self._times is not None and now != self._second:
            self._second = now
            self._times.write(b"%d %d\n" % (now, place))

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._say(text)

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
