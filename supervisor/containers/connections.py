"""Carries connections that arrive at listening sockets to ports of a container."""

import errno
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import trio

from scrun.core.errors import ScrunError, described
from scrun.supervisor.contracts.networks import Reach
from scrun.supervisor.core.nurseries import bulkhead

_MOST = 256
"""Connections at a time to those sockets; others wait in the kernel's queue."""

_PAUSE = 1.0
_IDLE = 60
_NOT_LISTENING = (errno.EINVAL, errno.EOPNOTSUPP)
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RESET = struct.pack("ii", 1, 0)

PortOf = Callable[[trio.socket.SocketType], int]
"""Returns the port of the container that a client is for; raises ScrunError or OSError where it
is to see a reset."""


class ClientConnections:
    """The connections of one `scrun forward`, or of one network."""

    def __init__(
        self,
        container: str,
        nursery: trio.Nursery,
        reach: Reach,
        say: Callable[[str], Awaitable[None]],
    ) -> None:
        """`say`: gets a line about a connection that failed, unless the last one was the same."""
        self._container = container
        self._nursery = nursery
        self._reach = reach
        self._say_line = say
        self._room = trio.Semaphore(_MOST)
        self._said: dict[int, str] = {}

    async def accept(self, listener: socket.socket, port_of: PortOf) -> None:
        """Accept connections for ever.

        Raises:
            OSError: It does not listen.
        """
        listener.setblocking(False)
        while True:
            await trio.lowlevel.wait_readable(listener)  # else each listener has a place for ever
            try:
                self._room.acquire_nowait()
            except trio.WouldBlock:
                await self._say(0, f"{_MOST} are open, and others wait until one ends")
                await self._room.acquire()
            if (client := await self._accepted(listener)) is None:
                self._room.release()
                continue
            task = partial(self._serve, client, port_of)
            self._nursery.start_soon(bulkhead, f"container {self._container}: forward", task)

    async def _accepted(self, listener: socket.socket) -> trio.socket.SocketType | None:
        """Accept a connection without a wait: trio's own would yield three times for each."""
        try:
            return trio.socket.from_stdlib_socket(listener.accept()[0])
        except OSError as error:
            if error.errno in _NOT_LISTENING:  # for ever
                raise
            if error.errno in _NO_ROOM:  # no event tells when there is
                await self._say(0, str(error.strerror))
                await trio.sleep(_PAUSE)
            return None

    async def _serve(self, client: trio.socket.SocketType, port_of: PortOf) -> None:
        port = 0
        try:
            with client:
                try:
                    port = port_of(client)
                    if client.family != socket.AF_UNIX:
                        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        # else one whose machine went away has a place for ever
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE)
                    await self._reach(client, port)
                    self._said.pop(port, None)
                except BaseException as error:
                    with suppress(OSError):
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    if not isinstance(error, ScrunError | OSError):
                        raise
                    await self._say(port, described(error))
        finally:
            self._room.release()

    async def _say(self, port: int, why: str) -> None:
        if self._said.get(port) != why:
            self._said[port] = why
            where = f"port {port}" if port else "a connection"
            await self._say_line(f"container {self._container}: {where}: {why}")
