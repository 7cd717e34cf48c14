"""How the caller's descriptors are read and written without a change that others would notice.

Others share their open file descriptions, and O_NONBLOCK belongs to that: a shell whose terminal
became non-blocking loses output. So a pipe or a device is opened anew, through /proc/self/fd; a
socket has flags for a single call; a regular file is read and written in a thread. A pipe or
terminal of another user, which we may not open, is left to a `cat`.
"""

import errno
import fcntl
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, Self

import trio

from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.children.pumps import cat_from, cat_to
from scrun.supervisor.core.descriptors import may_hang
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.wire.frames import WINDOW

_NULL = os.makedev(1, 3)
_MUCH = 1 << 22
_LARGE = WINDOW  # then it takes all that may arrive, and nothing waits in our memory
_MOST_LARGE = 16

Cat = Callable[[int, ChildEnv], AbstractAsyncContextManager[int]]


class Gone(Exception):
    """Nobody reads any more, or nothing can be written; the reason, or "" for the usual one."""


def gone(error: OSError) -> Gone:
    """Return the error as the end of a reader."""
    return Gone("" if error.errno in (errno.EPIPE, errno.ECONNRESET) else str(error.strerror))


class Offsets(Protocol):
    """Notes reads or writes for a successor (`supervisor.nodes.counted`)."""

    def begin(self, count: int, offset: int) -> None:
        """Note that so many bytes are about to be put."""

    def put(self, count: int) -> None: ...


class Unbuffered:
    """What keeps nothing of what it took."""

    pending = False

    async def flush(self) -> None:
        """Do nothing: nothing waits."""


class RegularFile(Unbuffered):
    """A regular file, read and written in threads; a block that is left abandons one that hangs.

    The offset stays one for all who share the file.
    """

    def __init__(self, fd: int) -> None:
        """Take a descriptor over; it is closed when the block is left."""
        self._kept = _SharedDescriptor(fd)
        self._abandoned = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it; if a thread hangs in it, that does."""
        if not self._abandoned:
            self._kept.close()

    async def read_into(self, room: memoryview, offsets: Offsets | None = None) -> int:
        """Read; return the number of bytes, 0 at the end of file or after an error."""
        try:
            return await in_thread(_read, self._kept, room, offsets, abandon=True)
        except OSError:  # a directory, a broken disk
            return 0
        except trio.Cancelled:
            self._abandoned = True
            raise

    @property
    def fd(self) -> int:
        return self._kept.fd

    @property
    def offset(self) -> int:
        """Where the next byte goes."""
        return os.lseek(self._kept.fd, 0, os.SEEK_CUR)

    def try_write(self, data: memoryview) -> int:
        """Write nothing: that may take long."""
        return 0

    async def write(self, data: memoryview, offsets: Offsets | None = None) -> int:
        """Write at least a part, and return the number of bytes; Gone if it cannot be written."""
        try:
            return await in_thread(_write, self._kept, data, offsets, abandon=True)
        except OSError as error:
            raise gone(error) from None
        except trio.Cancelled:
            self._abandoned = True
            raise


class _SharedDescriptor:
    """A descriptor that is closed at the latest when no thread needs it any more."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def _read(kept: _SharedDescriptor, room: memoryview, offsets: Offsets | None) -> int:
    if offsets is not None:
        offsets.begin(len(room), os.lseek(kept.fd, 0, os.SEEK_CUR))
    read = os.readv(kept.fd, [room])
    if offsets is not None:
        offsets.put(read)
    return read


def _write(kept: _SharedDescriptor, data: memoryview, offsets: Offsets | None) -> int:
    if offsets is not None:
        offsets.begin(len(data), os.lseek(kept.fd, 0, os.SEEK_CUR))
    written = os.write(kept.fd, data)
    if offsets is not None:
        offsets.put(written)
    return written


class Source(Protocol):
    """What is read from."""

    async def read_into(self, room: memoryview) -> int:
        """Read; return the number of bytes, 0 at the end of file or after an error."""


class Sink(Protocol):
    """What is written to."""

    @property
    def pending(self) -> bool:
        """Whether bytes that it took are not on yet: then `flush` waits for that."""

    async def flush(self) -> None:
        """Wait until all is written; raises Gone if it cannot be written any more."""

    def try_write(self, data: memoryview) -> int:
        """Write what fits without waiting; return the number of bytes. Raises Gone."""

    async def write(self, data: memoryview) -> int:
        """Write at least a part, and return the number of bytes. Raises Gone."""


def is_null(fd: int) -> bool:
    """Return whether a descriptor is /dev/null."""
    if os.readlink(f"/proc/self/fd/{fd}") != "/dev/null":
        return False
    seen = os.fstat(fd)
    return stat.S_ISCHR(seen.st_mode) and seen.st_rdev == _NULL


async def kind_of(fd: int) -> int:
    """Return the type of a file (inode(7)); that of a regular one may be asked from a server."""
    if may_hang(fd):
        return (await in_thread(os.fstat, fd, abandon=True)).st_mode
    return os.fstat(fd).st_mode


def source(fd: int, child_env: ChildEnv) -> AbstractAsyncContextManager[Source]:
    """Open a caller's descriptor for reading; the caller's stays as it is.

    Raises OSError if we are out of descriptors, or cannot start a process.
    """
    return _end(fd, os.O_RDONLY, cat_from, child_env)


def sink(fd: int, child_env: ChildEnv) -> AbstractAsyncContextManager[Sink]:
    """Open a caller's descriptor for writing; likewise.

    When the block is left without an error, everything has been written, also by a `cat`.
    """
    return _end(fd, os.O_WRONLY, cat_to, child_env)


@asynccontextmanager
async def _end(
    fd: int, mode: int, cat: Cat, child_env: ChildEnv
) -> AsyncIterator["Pipe | _Socket | RegularFile | _Nothing"]:
    """Open a descriptor for one of both."""
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE not in (mode, os.O_RDWR):
        yield _Nothing()
        return
    kind = await kind_of(fd)
    if stat.S_ISSOCK(kind):
        with socket.socket(fileno=os.dup(fd)) as sock:
            yield _Socket(sock)
    elif stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):
        async with _again(fd, mode, cat, child_env) as pipe:
            yield pipe
    else:
        with RegularFile(os.dup(fd)) as file:
            yield file


@asynccontextmanager
async def _again(
    fd: int, mode: int, cat: Cat, child_env: ChildEnv
) -> AsyncIterator["Pipe | _Nothing"]:
    """Open a pipe or a device anew, or have a `cat` copy if we may not."""
    try:
        again = open_again(fd, mode)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        if error.errno in (errno.ENXIO, errno.EIO):  # nobody reads; a terminal was hung up
            yield _Nothing()
            return
    else:
        own = Pipe(again)
        try:
            yield own
        finally:
            own.close()
        return
    async with cat(fd, child_env) as pipe:
        os.set_blocking(pipe, False)
        own = Pipe(pipe)
        try:
            yield own
        finally:
            own.let_go()


def open_again(fd: int, mode: int) -> int:
    """Open a pipe or a device anew, not to block; its other users do not notice. Or OSError."""
    return os.open(f"/proc/self/fd/{fd}", mode | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


class _Nothing(Unbuffered):
    """What cannot be read, or written."""

    async def read_into(self, room: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        return 0

    def try_write(self, data: memoryview) -> int:
        raise Gone

    async def write(self, data: memoryview) -> int:
        raise Gone


class Ready(Unbuffered):
    """What can be waited for: a descriptor that does not block, which stays the caller's."""

    _waits_first = True
    """Whether it is waited for after a read that got less than it could: nothing is left then."""

    def __init__(self, fd: int) -> None:
        self.fd = self._fd = fd
        self._is_empty = False

    def _read(self, room: memoryview) -> int:
        return os.readv(self._fd, [room])

    def _write(self, data: memoryview) -> int:
        return os.write(self._fd, data)

    def read_now(self, most: int) -> bytes:
        """Return bytes that are there; none where nothing is, or at the end, which stays."""
        room = memoryview(bytearray(most))
        try:
            count = self._read(room)
        except OSError:
            count = 0
        self._is_empty = self._waits_first and count < most
        return bytes(room[:count])

    async def read_into(self, room: memoryview) -> int:
        if not self._is_empty:
            await trio.lowlevel.checkpoint()
        while True:
            try:
                if self._is_empty:
                    await trio.lowlevel.wait_readable(self._fd)
                count = self._read(room)
            except BlockingIOError:
                self._is_empty = True
            except OSError:  # of a terminal: it was hung up
                return 0
            else:
                self._is_empty = self._waits_first and count < len(room)
                return count

    def try_write(self, data: memoryview) -> int:
        try:
            return self._write(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise gone(error) from None

    async def write(self, data: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        while not (count := self.try_write(data)):
            await trio.lowlevel.wait_writable(self._fd)
        return count


class Pipe(Ready):
    """A pipe or a device, by an open file description of our own that does not block.

    A pipe that carries much is made larger: its reader and we wake each other less often then, and
    a byte takes half the time. Only some are, for a user may have 64 MiB in pipes (pipe(7)).
    """

    _waits_first = False  # some devices cannot be waited for
    _large = 0

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._until_large: int | None = _MUCH
        self._is_large = False

    def close(self) -> None:
        os.close(self._fd)
        self.let_go()

    def let_go(self) -> None:
        """Leave it to its owner, who closes it."""
        Pipe._large -= self._is_large
        self._is_large = False

    def count(self, count: int) -> int:
        """Count bytes, and enlarge it if they are many."""
        if self._until_large is not None:
            self._until_large -= count
            if self._until_large < 0 and Pipe._large < _MOST_LARGE:
                self._enlarge()
        return count

    def _enlarge(self) -> None:
        self._until_large = None
        try:
            if fcntl.fcntl(self._fd, fcntl.F_GETPIPE_SZ) < _LARGE:
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _LARGE)
                self._is_large = True
                Pipe._large += 1
        except OSError:  # a device; the user has too much in pipes
            pass

    def _read(self, room: memoryview) -> int:
        return self.count(super()._read(room))

    def _write(self, data: memoryview) -> int:
        return self.count(super()._write(data))


class _Socket(Ready):
    """A socket, whose file description is not ours."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock.fileno())
        self._sock = sock

    def _read(self, room: memoryview) -> int:
        return self._sock.recv_into(room, 0, socket.MSG_DONTWAIT)

    def _write(self, data: memoryview) -> int:
        return self._sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
