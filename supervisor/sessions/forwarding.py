"""Forwards connections to ports of a container: `scrun forward`.

The command listens, and its sockets come with the request: so nobody is turned away while there
is no supervisor, and a successor goes on with them. We accept, and the job connects.
"""

import errno
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from ipaddress import ip_address

import trio

from scrun.core.errors import EngineError, ScrunError, StateError, described
from scrun.supervisor.containers.caller import send
from scrun.supervisor.containers.container import Container
from scrun.supervisor.contracts.engine import Reach
from scrun.supervisor.core.nurseries import bulkhead, unwrapped

_MOST = 256
"""Connections at a time of one `scrun forward`; others wait in the kernel's queue."""

_PAUSE = 1.0
_NOT_LISTENING = (errno.EINVAL, errno.EOPNOTSUPP)
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RESET = struct.pack("ii", 1, 0)

_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1
_HEAD = struct.Struct("=IHHII")  # struct nlmsghdr
_ASKED = struct.Struct("=BBBBI2s2s16s16sIII")  # struct inet_diag_req_v2
_ANY, _ANY_COOKIE = (1 << 32) - 1, (1 << 32) - 1
_OWNER = struct.Struct("=II")  # of struct inet_diag_msg: idiag_uid, idiag_inode
_OWNER_AT = _HEAD.size + 4 + 48 + 12


async def forward(
    container: Container,
    connection: trio.socket.SocketType,
    listeners: Sequence[int],
    ports: Sequence[int],
) -> None:
    """Forward connections until the container ends, or the command goes.

    Args:
        connection: The command's, which is told that this begins, and of failures, in lines.
        listeners: Listen for connections to the ports; they stay the caller's.

    Raises:
        StateError: The container does not run.
        EngineError: Its network cannot be reached.
    """
    job = (await container.running("forward")).job
    if (reaching := job.reaching()) is None:
        node = job.environment.get("SLURM_JOB_NODELIST", "its node")
        raise StateError(
            f"container {container.id}: forward needs a shim, which this container does not have: "
            f'connect to {node}, or set launch = "shim" in scrun.toml'
        )
    async with reaching as reach:
        await send(connection, b"\0")
        async with unwrapped() as nursery:
            with ExitStack() as stack:
                forwarding = _Forwarding(container, connection, nursery, reach)
                for fd, port in zip(listeners, ports, strict=True):
                    listener = trio.socket.from_stdlib_socket(socket.socket(fileno=os.dup(fd)))
                    stack.enter_context(listener)
                    nursery.start_soon(forwarding.accept, listener, port)
                nursery.start_soon(_end_with, connection, nursery.cancel_scope)
                await container.ended.wait()
                nursery.cancel_scope.cancel()


async def _end_with(connection: trio.socket.SocketType, scope: trio.CancelScope) -> None:
    with suppress(OSError):
        while await connection.recv(1):
            pass
    scope.cancel()


class _Forwarding:
    """One `scrun forward`."""

    def __init__(
        self,
        container: Container,
        connection: trio.socket.SocketType,
        nursery: trio.Nursery,
        reach: Reach,
    ) -> None:
        self._container = container
        self._connection = connection
        self._nursery = nursery
        self._reach = reach
        self._room = trio.Semaphore(_MOST)
        self._said: dict[int, str] = {}

    async def accept(self, listener: trio.socket.SocketType, port: int) -> None:
        """Accept connections to a port for ever."""
        while True:
            await self._room.acquire()
            while (client := await self._accepted(listener, port)) is None:
                pass
            task = partial(self._serve, client, port)
            self._nursery.start_soon(bulkhead, f"container {self._container.id}: forward", task)

    async def _accepted(
        self, listener: trio.socket.SocketType, port: int
    ) -> trio.socket.SocketType | None:
        try:
            return (await listener.accept())[0]
        except OSError as error:
            if error.errno in _NOT_LISTENING:  # for ever
                raise
            if error.errno in _NO_ROOM:  # no event tells when there is
                await self._say(port, str(error.strerror))
                await trio.sleep(_PAUSE)
            return None

    async def _serve(self, client: trio.socket.SocketType, port: int) -> None:
        try:
            with client:
                try:
                    if not may_connect(client):
                        raise EngineError("a connection of another user was refused")
                    if client.family != socket.AF_UNIX:
                        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
        """Tell the command why a connection failed, unless the last one did for the same."""
        if self._said.get(port) != why:
            self._said[port] = why
            with suppress(OSError):  # the command has gone
                line = f"container {self._container.id}: port {port}: {why}\n"
                await send(self._connection, line.encode(errors="replace"))


def may_connect(client: trio.socket.SocketType) -> bool:
    """Return whether a client may be served: on the loopback, whether it is root's, or our user's.

    Every user of this machine reaches its loopback. Another address was chosen to be reached.

    Raises:
        OSError: The kernel does not know the connection any more.
    """
    if client.family == socket.AF_UNIX:
        return True
    own, peer = client.getsockname(), client.getpeername()
    if not ip_address(own[0]).is_loopback:
        return True
    return owner_of(client.family, peer, own) in (0, os.geteuid())


def owner_of(family: int, own: tuple[str, int], peer: tuple[str, int]) -> int | None:
    """Return the user of a TCP socket of this machine, by its addresses (sock_diag(7)).

    Returns None for one that its process has closed: then the kernel may not know.

    Raises:
        OSError: There is none.
    """
    places = [socket.inet_pton(family, at[0]).ljust(16, b"\0") for at in (own, peer)]
    numbers = [at[1].to_bytes(2, "big") for at in (own, peer)]
    asked = _ASKED.pack(
        family, socket.IPPROTO_TCP, 0, 0, _ANY, *numbers, *places, 0, _ANY_COOKIE, _ANY_COOKIE
    )
    head = _HEAD.pack(_HEAD.size + len(asked), _BY_FAMILY, _REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.send(head + asked)
        answer = kernel.recv(4096)
    if _HEAD.unpack_from(answer)[1] != _BY_FAMILY:
        number = -struct.unpack_from("=i", answer, _HEAD.size)[0]
        raise OSError(number, os.strerror(number))
    uid, inode = _OWNER.unpack_from(answer, _OWNER_AT)
    return uid if inode else None
