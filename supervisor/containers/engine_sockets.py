"""Sockets of the engine's, on this machine, that a container in a job mounts.

What connects to one in the container is connected to the engine's own. So a program that makes
containers by the engine's API, in a container itself, makes them beside it.
"""

import os
import socket
import stat
import struct
from collections.abc import Mapping
from contextlib import suppress

import trio

from scrun.core.errors import EngineError, StateError
from scrun.protocol.wire import peer_uid
from scrun.supervisor.contracts.engine import Job
from scrun.supervisor.core.threads import in_thread

_PATIENCE = struct.pack("ll", 10, 0)  # struct timeval


class EngineSockets:
    """The sockets of one container; an `EngineSide` for its job."""

    def __init__(self, sockets: Mapping[str, str]) -> None:
        """`sockets`: the sockets here, by where they are mounted."""
        self._sockets = sockets

    async def connect(self, address: str, port: int) -> trio.socket.SocketType:
        """Connect to a socket; the address is where it is mounted. See `EngineSide.connect`."""
        del port
        if address not in self._sockets:  # a node's word is not trusted
            raise EngineError(f"the container does not mount a socket at {address}")
        found = await in_thread(connected, self._sockets[address])
        return trio.socket.from_stdlib_socket(found)

    async def ask(self, question: bytes) -> bytes:
        raise EngineError("sockets have no name server")


def connected(path: str) -> socket.socket:
    """Connect to a socket of this user's. Blocks.

    Raises:
        OSError: Nobody listens there.
        EngineError: It is another user's, or another user listens there.
    """
    # no link was there when the container was made; one could lead to any socket of this user's
    found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status, user = os.fstat(found), os.geteuid()
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != user:
            raise EngineError(f"{path} is not a socket of this user's any more")
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _PATIENCE)
            sock.connect(f"/proc/self/fd/{found}")  # its own name may be longer than 107 bytes
            if peer_uid(sock) != user:
                raise EngineError(f"another user listens at {path}")
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
    finally:
        os.close(found)
    return sock


async def carry(sockets: Mapping[str, str], job: Job, begun: trio.Event) -> None:
    """Carry what a container's programs connect to at its engine's sockets, until it has ended.

    Args:
        sockets: The sockets here, by where it mounts them.
        begun: Set when it runs.
    """
    await begun.wait()
    with suppress(StateError):  # it has ended already
        await job.reach_sockets(EngineSockets(sockets))
