"""Captures the output of containers of `run --detach`, which nobody reads.

The supervisor writes the output into a file of the record; `logs` and `attach` read it there. The
file is the buffer: each reader has its own position, so a slow one delays nobody. Its size is
limited (`supervisor.log.files`).
"""

import fcntl
import os
import stat
import struct
import termios
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, aclosing, suppress

import trio

from scrun.core.terminal import openpty
from scrun.model.record import TIMES
from scrun.supervisor.containers.stdio import Stdio, is_terminal
from scrun.supervisor.log.files import LimitedFile
from scrun.supervisor.nodes.counted import PIPE, RING, CountedSource, Hold, Ring, SplicedPipe
from scrun.supervisor.nodes.ends import kind_of
from scrun.supervisor.nodes.link import buffer

_PIECE = 64 * 1024
_PLAIN = "plain"
_TIMES_PART = 16  # of the limit: by default some hours in which each second has output


class Followed:
    """A growing file that others follow.

    Attributes:
        path: Its path.
        file: The file, if its size is limited.
        ended: Whether it is complete.
    """

    def __init__(self, path: str, file: LimitedFile | None = None) -> None:
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
        self.ended = True
        self._more.set()

    async def read(self, *, from_now: bool) -> AsyncGenerator[bytes, None]:
        """Yield the content and all that is added, until the end; close it with `aclosing`.

        A slow reader misses what the limit discards meanwhile.

        Args:
            from_now: Skip what is in the file already.
        """
        async with aclosing(self.read_from(None if from_now else 0)) as pieces:
            async for _, piece in pieces:
                if piece:
                    yield piece

    async def read_from(self, begin: int | None) -> AsyncGenerator[tuple[int, bytes], None]:
        """Do the same from a position on, or from the first one that is left.

        Args:
            begin: The position, counting bytes that were discarded; None for the present end.

        Yields:
            A position, and what is there; at first nothing.
        """
        is_newer = begin is None or self.file is None or begin >= self.file.begins
        generation, fd = self._open(self._generation if is_newer else 0)
        try:
            first, size = self._first(generation), os.fstat(fd).st_size
            offset = size if begin is None else min(max(begin - first, 0), size)
            yield first + offset, b""
            while True:
                more, ended = self._more, self.ended
                if offset > (size := os.fstat(fd).st_size):  # a full disk truncates it
                    offset, first = size, self._first(generation)
                while piece := os.pread(fd, _PIECE, offset):
                    offset += len(piece)
                    yield first + offset - len(piece), piece
                if generation < self._generation:
                    os.close(fd)
                    fd = -1
                    generation, fd = self._open(generation + 1)
                    offset, first = 0, self._first(generation)
                elif ended:
                    return
                else:
                    await more.wait()
        finally:
            if fd >= 0:
                os.close(fd)

    def _first(self, generation: int) -> int:
        """Return the position of the first byte of a file that still exists."""
        if self.file is None:
            return 0
        return self.file.begins if generation == self._generation else self.file.lost

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


async def _is_awaited(fd: int) -> bool:
    """Tell whether somebody may read a descriptor to its end: a terminal, a pipe or a socket.

    `id=$(scrun run --detach …)` would last as long as the container, and so would an ssh.
    """
    return await _is_others(fd) or stat.S_ISFIFO(await kind_of(fd))


async def _is_others(fd: int) -> bool:
    """Tell whether others need a descriptor: programs of its terminal, or who is at its socket."""
    return await is_terminal(fd) or stat.S_ISSOCK(await kind_of(fd))


class CapturedOutput:
    """The output of one container.

    Attributes:
        output: The file that it goes to.
        terminal: Whether the container has a terminal, which is ours then.
    """

    def __init__(self, path: str, limit: int, report: Callable[[str], None]) -> None:
        """Prepare; nothing is captured yet.

        Args:
            limit: How many bytes to keep.
            report: Called with a message when output is lost.
        """
        self._limit = limit
        self._report = report
        self._reported: set[str] = set()
        self.output = Followed(path)
        self.terminal = False
        self._plain: SplicedPipe | None = None
        self._left: Mapping[str, int] = {}
        self._hold: Hold = _ignore
        self._typing = trio.Lock()
        self._times: LimitedFile | None = None
        self._second = 0

    async def connect(self, stdio: Stdio, *, terminal: bool) -> bool:
        """Replace a container's descriptors that are not files.

        Args:
            stdio: The descriptors of `run`.
            terminal: Whether the container wants a terminal: it gets one of ours.

        Returns:
            Whether anything is captured: then run `capture`.

        Raises:
            OSError: A terminal, pipe or file cannot be opened.
        """
        captured = (
            (0, 1, 2) if terminal else [n for n in (1, 2) if await _is_awaited(stdio.fds[n])]
        )
        is_null = not terminal and await _is_others(stdio.fds[0])
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
                source, end = map(ours, openpty() if terminal else os.pipe())
                replaced = {number: ours(os.dup(end)) for number in captured}
            if is_null:
                replaced[0] = ours(os.open("/dev/null", os.O_RDONLY))
            undo.pop_all()
        stdio.replace(replaced, terminal=terminal)
        if captured:
            os.close(end)
            self.terminal, self.output.file = terminal, file
            self._times = times
            self._read_from(source)
        return bool(captured)

    def _read_from(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._plain = SplicedPipe(fd)

    def keep(self, hold: Hold) -> None:
        """Keep what a successor needs, by names for `take_over`; before `capture`."""
        assert self._plain is not None
        self._hold = hold
        hold({_PLAIN: self._plain.fd})

    def take_over(self, fds: Mapping[str, int], *, terminal: bool) -> None:
        """Go on where another supervisor was killed; then run `capture`.

        Args:
            fds: What it has kept; owned from now on.
            terminal: Whether the container has a terminal of ours.

        Raises:
            OSError: A file cannot be opened.
        """
        self.terminal = terminal
        self.output.file = LimitedFile(self.output.path, self._limit, again=True)
        times = self.output.path + TIMES
        self._times = LimitedFile(times, self._limit // _TIMES_PART, again=True)
        self._left = fds
        self._read_from(fds[_PLAIN])

    async def capture(self) -> None:
        """Write the output to the file, until its last writer is gone.

        It is read exactly; how much of it was written, the file tells.
        """
        plain, left, room = self._plain, self._left, buffer(_PIECE)
        assert plain is not None
        assert self.output.file is not None
        ring = Ring(left[RING], _PIECE) if RING in left else None
        source = CountedSource(plain, self._hold, ring, left.get(PIPE, -1), _PIECE)
        source.go_to(self.output.file.offset)
        try:
            while count := await source.read_into(room):
                self._put(bytes(room[:count]))
                self.output.grew()
        finally:
            self._plain = None  # the number may be reused from now on
            trio.lowlevel.notify_closing(plain.fd)
            plain.close()
            source.close()
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
        rest = memoryview(data)
        async with self._typing:  # several may be attached
            while rest and self.terminal and self._plain is not None:
                try:
                    rest = rest[os.write(self._plain.fd, rest) :]
                except BlockingIOError:
                    with suppress(trio.ClosedResourceError):
                        await trio.lowlevel.wait_writable(self._plain.fd)
                except OSError:
                    return  # it ends

    async def write_from(self, pipe: int) -> None:
        """Move input from a pipe to the terminal, until the end of either."""
        while self.terminal and self._plain is not None:
            await trio.lowlevel.wait_readable(pipe)
            async with self._typing:
                if self._plain is None:
                    return
                try:
                    if not self._plain.move_from(pipe, _PIECE):
                        return
                except BlockingIOError:
                    with suppress(trio.ClosedResourceError):
                        await trio.lowlevel.wait_writable(self._plain.fd)
                except OSError:
                    return  # it ends

    def resize(self, rows: int, columns: int) -> None:
        """Set the terminal's size (ioctl_tty(2))."""
        if self.terminal and self._plain is not None:
            try:
                fcntl.ioctl(
                    self._plain.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0)
                )
            except OSError:
                pass  # it ends


def _ignore(_fds: dict[str, int]) -> None:
    """Keep nothing."""
