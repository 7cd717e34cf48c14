"""Reads and writes streams so that a successor knows exactly which bytes were read and written.

Between a write and a note of it, a supervisor can be killed. So bytes go into a pipe of ours
first, and from there by splice(2), which moves them: the bytes put in, less those still there,
were written. Only the number of bytes put in has to be noted, in shared memory. That pipe is empty
before more is put in: we note how much that will be, put it in, and note that it is there. So the
content of the pipe tells how far a supervisor got that was killed in between.

The bytes of input that were read are in shared memory until the shim has them: in a ring as large
as the window, so that nothing is overwritten before there was credit for it. They, too, are moved
into a pipe of ours first, and read from there: the earlier content, which is noted, less the
present one, was read.

A regular file cannot be waited for, and has an offset, which tells the same.
"""

import errno
import fcntl
import mmap
import os
import select
import socket
import stat
import struct
import termios
from collections.abc import Callable

import trio

from scrun.supervisor.nodes.ends import Pipe, RegularFile, Unbuffered, gone, kind_of, open_again
from scrun.supervisor.wire.frames import WINDOW

_NOBLOCK = 2  # SPLICE_F_NONBLOCK
_SOME = 1 << 14  # a socket that can be written has far more room
_SIZE = 1 << 16
_ENDED = 3

PIPE, RING = "pipe", "ring"
"""The names by which our descriptors are kept."""

Hold = Callable[[dict[str, int]], None]
"""Keeps descriptors where a successor finds them, by their names."""


class SplicedPipe(Pipe):
    """A caller's pipe, terminal, other device, or socket of a stream; see `spliced_pipe`.

    splice(2) need not wait for a pipe, whatever its flags are. For a socket it may: we look before
    (poll(2)), and a socket that can be written has room for what we move at once. What is read
    from a device that knows no splice(2) is copied: who is killed then has lost it.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._splices = True
        self._is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)

    def move_to(self, pipe: int, most: int) -> int:
        """Move what can be read into a pipe; return the number of bytes, 0 at its end.

        Raises BlockingIOError if there is nothing yet, and OSError if it cannot be read.
        """
        self._look(select.POLLIN)
        if self._splices:
            try:
                return os.splice(self.fd, pipe, most, flags=_NOBLOCK)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._splices = False  # terminals before Linux 5.12, and some devices
        return os.write(pipe, os.read(self.fd, min(most, select.PIPE_BUF)))

    def move_from(self, pipe: int, most: int) -> int:
        """Move bytes of a pipe here; return their number.

        Raises BlockingIOError if there is no room, and OSError if it cannot be written.
        """
        self._look(select.POLLOUT)
        most = min(most, _SOME) if self._is_socket else most
        try:
            return os.splice(pipe, self.fd, most, flags=_NOBLOCK)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise OSError(errno.EIO, os.strerror(errno.EIO)) from None  # a terminal hung up

    def _look(self, event: int) -> None:
        if self._is_socket:
            poller = select.poll()
            poller.register(self.fd, event)
            if not poller.poll(0):
                raise BlockingIOError


async def spliced_pipe(fd: int, mode: int) -> SplicedPipe | None:
    """Return a caller's descriptor, to be closed, if bytes can be moved from or to it.

    That stays as it is. None for a regular file, for what is open for the other direction than
    `mode`, O_RDONLY or O_WRONLY, and for a device that we may not open or that cannot be written
    so. Raises OSError if we are out of descriptors.
    """
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE not in (mode, os.O_RDWR):
        return None
    kind = await kind_of(fd)
    if stat.S_ISFIFO(kind) or (stat.S_ISSOCK(kind) and _is_stream(fd)):
        return SplicedPipe(os.dup(fd))
    return _device(fd, mode) if stat.S_ISCHR(kind) else None


def _is_stream(fd: int) -> bool:
    with socket.socket(fileno=os.dup(fd)) as sock:
        return sock.type == socket.SOCK_STREAM


def _device(fd: int, mode: int) -> SplicedPipe | None:
    """Open a device anew: only so it does not block."""
    try:
        device = SplicedPipe(open_again(fd, mode))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return None
    if mode == os.O_WRONLY and not _takes_moved(device):
        device.close()
        return None
    return device


def _takes_moved(device: SplicedPipe) -> bool:
    """Return whether the kernel moves bytes to it: that is told before it looks at the bytes."""
    pipe = new_pipe()
    try:
        device.move_from(pipe, 1)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(pipe)
    return True


def new_pipe() -> int:
    """Return a pipe of ours: one descriptor for both of its ends, which does not block."""
    readable, writable = os.pipe()
    try:
        flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(f"/proc/self/fd/{readable}", flags)
    finally:
        os.close(readable)
        os.close(writable)


def left_in(pipe: int) -> int:
    """Return how many bytes are in a pipe."""
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])


class Count:
    """How many bytes of a stream were written, in memory that outlives us."""

    def __init__(self, fd: int | None = None, more: int = 0) -> None:
        """Begin, or continue in the memory of another supervisor, which is owned from now on.

        It has so many bytes `more`.
        """
        if fd is None:
            fd = os.memfd_create("scrun-count", os.MFD_CLOEXEC)
            os.ftruncate(fd, mmap.PAGESIZE + more)
        self.fd = fd
        memory = memoryview(mmap.mmap(fd, mmap.PAGESIZE + more))
        self.memory = memory[mmap.PAGESIZE :]
        self._words = memory[: mmap.PAGESIZE].cast("Q")

    @property
    def done(self) -> int:
        """The bytes that are known to have been put."""
        return self._words[0]

    @property
    def undecided(self) -> int:
        """How many more somebody was about to put who was killed."""
        return self._words[1] - self._words[0]

    @property
    def offset(self) -> int:
        """The file's offset before the last write."""
        return self._words[2]

    def begin(self, count: int, offset: int = 0) -> None:
        """Note that so many bytes are about to be put."""
        self._words[2] = offset
        self._words[1] = self._words[0] + count

    def put(self, count: int) -> None:
        self._words[1] = self._words[0] + count  # first: who dies in between was still about to
        self._words[0] += count

    def close(self) -> None:
        os.close(self.fd)


class CountedPipe:
    """A pipe that is written exactly (see `supervisor.nodes.ends.Sink`)."""

    def __init__(
        self,
        plain: SplicedPipe,
        hold: Hold,
        count: Count | None = None,
        pipe: int = -1,
    ) -> None:
        """Begin, or continue with count and pipe of another supervisor, which are owned now.

        The plain pipe stays its owner's. `hold` is called before the first byte.
        """
        self.plain = plain
        self._fd = plain.fd
        self._hold = hold
        self._count = count
        self._pipe = pipe
        self._room = _SIZE
        if count is not None:
            if count.undecided:  # and the pipe was empty before
                count.put(left_in(pipe))
            self._look_at_room()

    @property
    def written(self) -> int:
        """The bytes that are in our pipe, or on."""
        return self._count.done if self._count is not None else 0

    @property
    def pending(self) -> bool:
        """Whether some of them are not on yet."""
        return self._pipe >= 0 and left_in(self._pipe) > 0

    def close(self) -> None:
        """Close what is ours."""
        if self._count is not None:
            self._count.close()
            os.close(self._pipe)
            self._count, self._pipe = None, -1

    def _begin(self) -> Count:
        self._pipe = new_pipe()
        self._count = Count()
        self._look_at_room()
        self._hold({"count": self._count.fd, "pipe": self._pipe})
        return self._count

    def _look_at_room(self) -> None:
        self._room = fcntl.fcntl(self._pipe, fcntl.F_GETPIPE_SZ)

    def _move_on(self) -> bool:
        """Move bytes on; return whether none is left."""
        try:
            while self.pending:
                self.plain.move_from(self._pipe, self._room)
        except BlockingIOError:
            return False
        except OSError as error:
            raise gone(error) from None
        return True

    def try_write(self, data: memoryview) -> int:
        count = self._count or self._begin()
        taken = 0
        while data and self._move_on():
            piece = data[: self._room]
            count.begin(len(piece))
            done = os.write(self._pipe, piece)
            count.put(done)
            self.plain.count(done)
            taken += done
            data = data[done:]
        if taken:
            self._move_on()
        return taken

    async def write(self, data: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        while not (count := self.try_write(data)):
            await trio.lowlevel.wait_writable(self._fd)
        return count

    async def flush(self) -> None:
        """Wait until all is written; raises Gone if it cannot be written any more."""
        while not self._move_on():
            await trio.lowlevel.wait_writable(self._fd)


class CountedFile(Unbuffered):
    """A regular file that is written exactly, unless others write to it at the same time."""

    def __init__(self, file: RegularFile, hold: Hold, count: Count | None = None) -> None:
        self.plain = self._file = file
        self._hold = hold
        self._count = count
        if count is not None and count.undecided:
            moved = file.offset - count.offset
            count.put(max(0, min(moved, count.undecided)))

    @property
    def written(self) -> int:
        return self._count.done if self._count is not None else 0

    def close(self) -> None:
        """Close what is ours."""
        if self._count is not None:
            self._count.close()
            self._count = None

    def try_write(self, data: memoryview) -> int:
        """Write nothing: that may take long."""
        return 0

    async def write(self, data: memoryview) -> int:
        if self._count is None:
            self._count = Count()
            self._hold({"count": self._count.fd})
        return await self._file.write(data, self._count)


class Ring(Count):
    """The last bytes of a stream that were read, and their number."""

    def __init__(self, fd: int | None = None, size: int = WINDOW) -> None:
        """Like `Count`; it always has the same size, in bytes."""
        super().__init__(fd, size)
        self._size = size

    @property
    def ended(self) -> bool:
        """Whether the end of the stream was read."""
        return bool(self._words[_ENDED])

    def end(self) -> None:
        """Note that the end was read."""
        self._words[_ENDED] = 1

    def at(self, position: int, most: int) -> memoryview:
        """Return the memory of a byte of the stream, and of those behind it, at most so many."""
        start = position % self._size
        return self.memory[start : min(start + most, self._size)]


class CountedSource:
    """Input that is read exactly (see `supervisor.nodes.ends.Source`).

    Attributes:
        plain: What is read; None if another supervisor has read all.
    """

    def __init__(
        self,
        plain: SplicedPipe | RegularFile | None,
        hold: Hold,
        ring: Ring | None = None,
        pipe: int = -1,
        size: int = WINDOW,
    ) -> None:
        """Begin, or continue with ring and pipe of another supervisor, which are owned now.

        The plain source stays its owner's. `hold` is called before the first byte. At most `size`
        bytes may have been read and not arrived.
        """
        self.plain = plain
        self._hold = hold
        self._ring = ring
        self._pipe = pipe
        self._size = size
        if ring is not None and ring.undecided:
            if isinstance(plain, RegularFile):
                read = plain.offset - ring.offset
            else:
                read = ring.offset - left_in(pipe) if pipe >= 0 else 0
            ring.put(max(0, min(read, ring.undecided)))
        self._given = ring.done if ring is not None else 0

    @property
    def is_left(self) -> bool:
        """Whether there is something to read, or was."""
        return self.plain is not None or self._ring is not None

    def close(self) -> None:
        """Close what is ours."""
        if self._ring is not None:
            self._ring.close()
            self._ring = None
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def go_to(self, position: int) -> None:
        """Give the bytes from this one on, or from the nearest that is still there."""
        done = self._ring.done if self._ring is not None else 0
        self._given = min(max(position, done - self._size, 0), done)

    async def read_into(self, room: memoryview) -> int:
        """Read; return the number of bytes, 0 at the end of file or after an error.

        Before more than its size is read, the bytes before must have arrived.
        """
        await trio.lowlevel.checkpoint()
        if self._ring is None and not await self._begin():
            return 0
        ring = self._ring
        assert ring is not None
        if self._given == ring.done and (ring.ended or not await self._fill(ring, len(room))):
            ring.end()
            return 0
        read = ring.at(self._given, min(len(room), ring.done - self._given))
        room[: len(read)] = read
        self._given += len(read)
        return len(read)

    async def _begin(self) -> bool:
        """Prepare for the first byte; many containers never get one."""
        if self.plain is None:
            return False
        if isinstance(self.plain, SplicedPipe):
            await trio.lowlevel.wait_readable(self.plain.fd)
            self._pipe = new_pipe()
        self._ring = Ring(None, self._size)
        self._hold({RING: self._ring.fd, **({PIPE: self._pipe} if self._pipe >= 0 else {})})
        return True

    async def _fill(self, ring: Ring, most: int) -> bool:
        """Read into the ring; return whether there was something."""
        if isinstance(self.plain, RegularFile):
            return await self.plain.read_into(ring.at(ring.done, most), ring) > 0
        if self.plain is None:
            return False
        while not (left := left_in(self._pipe)):
            try:
                if not self.plain.move_to(self._pipe, most):
                    return False
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self.plain.fd)
            except OSError:  # of a terminal: it was hung up
                return False
        place = ring.at(ring.done, min(left, most))
        ring.begin(len(place), left)
        read = os.readv(self._pipe, [place])
        ring.put(read)
        self.plain.count(read)
        return True
