"""Passes descriptors between processes (unix(7), SCM_RIGHTS).

The kernel counts what of a user's is on its way, in whatever socket, and refuses more to a process
of that user whose limit of open files is lower (ETOOMANYREFS). So nothing may wait in a socket for
long.
"""

import _socket

MOST = 250
"""Descriptors of a message (SCM_MAX_FD is 253)."""


def send_fds(sock: _socket.socket, data: bytes, fds: "list[int]", flags: int = 0) -> int:
    """Send the beginning of some data, with descriptors; return how many bytes were sent."""
    rights = b"".join([fd.to_bytes(4, "little") for fd in fds])
    ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if fds else []
    return sock.sendmsg([data], ancillary, flags)


def receive_fds(
    sock: _socket.socket, size: int, most: int = MOST
) -> "tuple[bytes, list[int], bool]":
    """Receive data and descriptors (close-on-exec), and whether there was room for all."""
    space = _socket.CMSG_LEN(most * 4)  # CMSG_SPACE may have room for one more
    data, ancillary, got, _ = sock.recvmsg(size, space, _socket.MSG_CMSG_CLOEXEC)
    return data, fds_in(ancillary), not got & _socket.MSG_CTRUNC


def fds_in(ancillary: "list[tuple[int, int, bytes]]") -> "list[int]":
    """Return the descriptors among what recvmsg(2) has received beside data."""
    return [
        int.from_bytes(content[at : at + 4], "little")
        for level, kind, content in ancillary
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
        for at in range(0, len(content) // 4 * 4, 4)
    ]
