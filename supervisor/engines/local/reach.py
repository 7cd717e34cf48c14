"""Connects to ports of a container on this machine, and carries the bytes."""

import errno
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from scrun.core.errors import EngineError
from scrun.core.paths import python_code
from scrun.supervisor.children.processes import ChildEnv, child
from scrun.supervisor.contracts.engine import Reach
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.shim.network import LOOPBACKS, elsewhere, socket_of
from scrun.supervisor.shim.processes import descendants

_PROGRAM = "from scrun.supervisor.shim.network import serve_descriptor; serve_descriptor()"
_PIECE = 1 << 18
_RIGHTS = socket.CMSG_LEN(4)

Make = Callable[[int], Awaitable[trio.socket.SocketType]]


@asynccontextmanager
async def reaching(pid: int, child_env: ChildEnv) -> AsyncIterator[Reach]:
    """Reach the network of a process, or of its first descendant that has another than ours.

    See `supervisor.contracts.engine.Job.reaching`.
    """
    try:
        found = await in_thread(lambda: elsewhere([pid, *descendants(pid)]))
    except OSError as error:
        raise EngineError(f"its network cannot be entered: {error.strerror}") from None
    if found is None:
        yield _reach_by(_own)
        return
    here, there = socket.socketpair()
    with trio.socket.from_stdlib_socket(here) as line:
        async with AsyncExitStack() as stack:
            with there:
                words = python_code(_PROGRAM, str(found), str(there.fileno()))
                started = child(words, child_env, pass_fds=[there.fileno()])
                await stack.enter_async_context(started)
            if not await line.recv(1):
                raise EngineError("its network cannot be entered")
            lock = trio.Lock()

            async def make(family: int) -> trio.socket.SocketType:
                async with lock:
                    await line.send(bytes([family]))
                    got = await line.recvmsg(1, _RIGHTS, socket.MSG_CMSG_CLOEXEC)
                    return trio.socket.from_stdlib_socket(socket.socket(fileno=socket_of(*got)))

            yield _reach_by(make)


async def _own(family: int) -> trio.socket.SocketType:
    return trio.socket.socket(family)


def _reach_by(make: Make) -> Reach:
    async def reach(client: trio.socket.SocketType, port: int) -> None:
        with await _connected(make, port) as server:
            await _carry(trio.SocketStream(client), trio.SocketStream(server))

    return reach


async def _connected(make: Make, port: int) -> trio.socket.SocketType:
    """Connect to the first address that takes it.

    Raises:
        OSError: None does; why the first one does not.
    """
    errors: list[OSError] = []
    for family, address in LOOPBACKS:
        try:
            server = await make(family)
            try:
                await server.connect((address, port))
            except BaseException:
                server.close()
                raise
        except OSError as error:
            errors.append(error)
        else:
            return server
    raise OSError(errors[0].errno, os.strerror(errors[0].errno or errno.EIO))


async def _carry(client: trio.SocketStream, server: trio.SocketStream) -> None:
    """Carry bytes until both directions have ended.

    Raises:
        EngineError: One end has reset the connection.
    """

    async def one_way(source: trio.SocketStream, sink: trio.SocketStream) -> None:
        while data := await source.receive_some(_PIECE):
            await sink.send_all(data)
        await sink.send_eof()

    try:
        async with unwrapped() as nursery:
            nursery.start_soon(one_way, client, server)
            nursery.start_soon(one_way, server, client)
    except* trio.BrokenResourceError:
        raise EngineError("the connection was reset") from None
