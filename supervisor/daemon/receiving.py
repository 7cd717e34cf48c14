"""Receives requests: who may call, and what they send."""

import os
import socket
import struct

import trio

from scrun.core.errors import StateError, UsageError
from scrun.core.paths import outer_id
from scrun.core.rights import MOST
from scrun.protocol import wire
from scrun.supervisor.daemon.requests import DESCRIPTORS

# Arguments and variables of a call take at most 6 MiB, each of them at least nine bytes
_FIELDS = 1 << 20
_NOBODY = 65534


def may_call(connection: trio.socket.SocketType) -> bool:
    """Return whether the caller is this user, or root (unix(7), SO_PEERCRED)."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, uid, _ = map(int, struct.unpack("3i", credentials))
    if uid == _NOBODY:  # in a user namespace, this stands for every unmapped user
        return uid == os.geteuid() == outer_id("uid", uid)
    return uid in (0, os.geteuid())


async def receive(connection: trio.socket.SocketType, fds: list[int]) -> tuple[list[bytes], bytes]:
    """Read one request, and the descriptors beside it into `fds`.

    Returns:
        Its fields; and what was received after it.

    Raises:
        UsageError: It is not a request.
        StateError: The supervisor is out of descriptors.
    """
    space = socket.CMSG_SPACE(MOST * 4)
    data = bytearray()
    length = None
    while length is None or len(data) < length:
        part, ancillary, flags, _ = await connection.recvmsg(65536, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(content) // 4 * 4
                fds.extend(struct.unpack(f"{whole // 4}i", content[:whole]))
        if flags & socket.MSG_CTRUNC and len(fds) < DESCRIPTORS:
            raise StateError("the supervisor is out of file descriptors: raise ulimit -n")
        if not part or flags & socket.MSG_CTRUNC or len(fds) > MOST:
            raise UsageError("this is not a request")
        data += part
        if length is None and len(data) >= 4:
            length = 4 + int.from_bytes(data[:4], "big")
            if length > wire.LIMIT:
                raise UsageError("the request is too long")
    request, unread = bytes(data[4:length]), bytes(data[length:])
    if request.count(0) > _FIELDS:
        raise UsageError("the request has too many fields")
    return request.split(b"\0"), unread
