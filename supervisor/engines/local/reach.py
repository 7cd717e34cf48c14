"""Connects to ports of a container on this machine, and carries the bytes."""

import errno
import fcntl
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Self

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
_PIECE = 1 << 20
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
        with _Mover() as mover:
            yield _reach_by(_own, mover)
        return
    here, there = socket.socketpair()
    with trio.socket.from_stdlib_socket(here) as line:
        async with AsyncExitStack() as stack:
            mover = stack.enter_context(_Mover())
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

            yield _reach_by(make, mover)


async def _own(family: int) -> trio.socket.SocketType:
    return trio.socket.socket(family)


def _reach_by(make: Make, mover: "_Mover") -> Reach:
    async def reach(client: trio.socket.SocketType, port: int) -> None:
        with await _connected(make, port) as server:
            await mover.carry(client, server)

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


class _Mover:
    """Moves bytes between sockets without a copy (splice(2)).

    That needs a pipe between them, which is empty whenever `move` does not run: so one does for
    all connections, and a user may have few (pipe(7)).
    """

    def __init__(self) -> None:
        self._readable, self._writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with suppress(OSError):  # the user has too much in pipes
            fcntl.fcntl(self._writable, fcntl.F_SETPIPE_SZ, _PIECE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._readable)
        os.close(self._writable)

    def move(self, source: int, sink: int) -> bytes | None:
        """Move what has arrived; return what the sink did not take, or None at the end.

        Raises:
            BlockingIOError: Nothing has arrived.
            ConnectionError: One end has reset the connection.
        """
        left = os.splice(source, self._writable, _PIECE, flags=os.SPLICE_F_NONBLOCK)
        if not left:
            return None
        try:
            while left:
                left -= os.splice(self._readable, sink, left, flags=os.SPLICE_F_NONBLOCK)
        except BlockingIOError:
            pass
        finally:
            rest = os.read(self._readable, left) if left else b""
        return rest

    async def carry(self, client: trio.socket.SocketType, server: trio.socket.SocketType) -> None:
        """Carry bytes until both directions have ended.

        Raises:
            EngineError: One end has reset the connection.
        """
        try:
            async with unwrapped() as nursery:
                nursery.start_soon(self._one_way, client, server)
                nursery.start_soon(self._one_way, server, client)
        except* (ConnectionError, trio.BrokenResourceError):
            raise EngineError("the connection was reset") from None

    async def _one_way(self, source: trio.socket.SocketType, sink: trio.socket.SocketType) -> None:
        stream = trio.SocketStream(sink)
        while True:
            try:
                rest = self.move(source.fileno(), sink.fileno())
            except BlockingIOError:
                await trio.lowlevel.wait_readable(source)
                continue
            if rest is None:
                await stream.send_eof()
                return
            await stream.send_all(rest)
