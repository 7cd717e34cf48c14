"""Forwards connections to ports of a container: `scrun forward`.

The command listens, and its sockets come with the request: so nobody is turned away while there
is no supervisor, and a successor goes on with them. We accept, and the job connects.
"""

import os
import socket
import struct
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from ipaddress import ip_address

import trio

from scrun.core.errors import EngineError, StateError
from scrun.supervisor.containers.caller import send
from scrun.supervisor.containers.connections import ClientConnections
from scrun.supervisor.containers.container import Container
from scrun.supervisor.core.nurseries import unwrapped

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
        trio.BrokenResourceError: The command has gone.
    """
    job = (await container.running("forward")).job
    if (reaching := job.reaching()) is None:
        node = job.environment.get("SLURM_JOB_NODELIST", "its node")
        raise StateError(
            f"container {container.id}: forward needs a shim, which this container does not have: "
            f'connect to {node}, or set launch = "shim" in scrun.toml'
        )
    async with reaching as reach:
        await trio.SocketStream(connection).send_all(b"\0")
        with ExitStack() as stack:  # a task that has not begun yet cannot wait for a closed socket
            async with unwrapped() as nursery:
                say = partial(_say, connection)
                connections = ClientConnections(container.id, nursery, reach, say)
                for fd, port in zip(listeners, ports, strict=True):
                    listener = socket.socket(fileno=os.dup(fd))
                    stack.enter_context(listener)
                    nursery.start_soon(connections.accept, listener, partial(_checked, port))
                nursery.start_soon(_end_with, connection, nursery.cancel_scope)
                await container.ended.wait()
                nursery.cancel_scope.cancel()


async def _end_with(connection: trio.socket.SocketType, scope: trio.CancelScope) -> None:
    with suppress(OSError):
        while await connection.recv(1):
            pass
    scope.cancel()


async def _say(connection: trio.socket.SocketType, line: str) -> None:
    with suppress(OSError):  # the command has gone
        await send(connection, f"{line}\n".encode(errors="replace"))


def _checked(port: int, client: trio.socket.SocketType) -> int:
    if why := why_refused(client):
        raise EngineError(why)
    return port


def why_refused(client: trio.socket.SocketType) -> str:
    """Return why a client is not served, or "": on the loopback it has to be ours, or root's.

    Every user of this machine reaches its loopback. Another address was chosen to be reached.
    """
    if client.family == socket.AF_UNIX or not ip_address(client.getsockname()[0]).is_loopback:
        return ""
    try:
        owner = owner_of(client.family, client.getpeername(), client.getsockname())
    except OSError:  # the kernel does not know the connection any more
        owner = None
    if owner is None:
        return "a client had gone before it was known whose it was, so what it sent was not taken"
    return "" if owner in (0, os.geteuid()) else "a connection of another user was refused"


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
