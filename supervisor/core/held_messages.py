"""Messages with descriptors that wait in a socket, and are read without being taken out."""

import array
import errno
import os
import resource
import socket
from collections.abc import Iterable

MOST = 250
"""Descriptors of a message (SCM_MAX_FD is 253)."""

_LONGEST = 1 << 18
_SPACE = socket.CMSG_SPACE((MOST + 3) * 4)
_PEEK_OFFSET = 42  # SO_PEEK_OFF: reads message after message, and leaves them there


def put_in(sock: socket.socket, content: bytes, fds: list[int]) -> None:
    """Put a message with descriptors into a socket.

    Raises:
        OSError: It does not fit; or too many descriptors of the user's are on their way, as many
            as our limit of open files.
    """
    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    for attempt in range(2):
        try:
            sock.sendmsg([content], beside, socket.MSG_DONTWAIT)
            return
        except OSError:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if attempt or soft == hard:
                raise
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def drop_first(sock: socket.socket) -> None:
    """Take the first message out; without room for them, its descriptors are closed."""
    sock.recv(1, socket.MSG_DONTWAIT)


def peeked(held: int) -> list[tuple[bytes, list[int]]]:
    """Return all messages of a socket, and duplicates of their descriptors.

    Raises:
        OSError: We are out of descriptors; none stays.
    """
    found: list[tuple[bytes, list[int]]] = []
    with socket.socket(fileno=os.dup(held)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, _PEEK_OFFSET, 0)
        try:
            while (message := _peek(sock)) is not None:
                found.append(message)
        except BaseException:
            for _, fds in found:
                close_all(fds)
            raise
    return found


def close_all(fds: Iterable[int]) -> None:
    """Close some descriptors."""
    for fd in fds:
        os.close(fd)


def _peek(sock: socket.socket) -> tuple[bytes, list[int]] | None:
    """Return the next message and its descriptors, or None."""
    flags = socket.MSG_PEEK | socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    try:
        content, ancillary, got, _ = sock.recvmsg(_LONGEST, _SPACE, flags)
    except BlockingIOError:
        return None
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % 4])
    if got & socket.MSG_CTRUNC:
        close_all(fds)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return (content, [*fds]) if content else None
