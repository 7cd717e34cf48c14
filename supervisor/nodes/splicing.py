"""Pipes, terminals and sockets from and to which bytes are moved by splice(2), without waiting."""

import errno
import fcntl
import os
import select
import socket
import stat
import struct
import termios

from scrun.supervisor.nodes.ends import Pipe, kind_of, open_again

_NOBLOCK = 2  # SPLICE_F_NONBLOCK
_SOME = 1 << 14  # a socket that can be written has far more room


class SplicedPipe(Pipe):
    """A caller's pipe, terminal, other device, or socket of a stream; see `spliced_pipe`.

    splice(2) need not wait for a pipe, whatever its flags are. For a socket it may: we look before
    (poll(2)), and a socket that can be written has room for what we move at once. What is read
    from a device that knows no splice(2) is copied: who is killed then has lost it.
    """

    def __init__(self, fd: int) -> None:
        """Take a descriptor over."""
        super().__init__(fd)
        self._splices = True
        self._is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)

    def move_to(self, pipe: int, most: int) -> int:
        """Move what can be read into a pipe; return the number of bytes, 0 at its end.

        Raises:
            BlockingIOError: There is nothing yet.
            OSError: It cannot be read.
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

        Raises:
            BlockingIOError: There is no room.
            OSError: It cannot be written.
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
    """Return a caller's descriptor, if bytes can be moved from or to it.

    Args:
        fd: The descriptor; stays as it is.
        mode: O_RDONLY or O_WRONLY.

    Returns:
        It, to be closed; None for a regular file, for what is open for the other direction, and
        for a device that we may not open or that cannot be written so.

    Raises:
        OSError: We are out of descriptors.
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
