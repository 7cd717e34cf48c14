"""Connections to ports of a container: by its shim, or past it where that is on this machine.

Also what containers of a shim connect to in networks of their engine's, and at its sockets.
"""

import base64
import os
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, nullcontext, suppress
from signal import SIGTERM
from typing import Any

import trio

from scrun.core.errors import EngineError, ScrunError
from scrun.protocol.wire import peer_pid, peer_uid
from scrun.supervisor.contracts.networks import EngineSide, Reach
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.nodes.beginning import Rank
from scrun.supervisor.nodes.beside import RIGHTS, Beside
from scrun.supervisor.nodes.connection import Awaited, Shim
from scrun.supervisor.nodes.ends import Ready
from scrun.supervisor.nodes.messages import ShimError, ShimLost
from scrun.supervisor.nodes.streams import Incoming, Outgoing
from scrun.supervisor.shim.network import SAME, host, socket_of
from scrun.supervisor.wire.frames import BESIDE, EARLY

_PATIENCE = 2.5
_MOST = 256
"""Connections and questions of one container at a time; others wait in the shim."""


class _ToServer(Outgoing):
    """What the client sends.

    Attributes:
        is_reset: Whether the server has reset the connection before the end of what it sent.
    """

    def __init__(self, incoming: Incoming) -> None:
        super().__init__(incoming.link, incoming.number)
        self.is_reset = False
        self._incoming = incoming

    def close(self) -> None:
        self.is_reset |= not self._incoming.ended
        super().close()


class _Client(Ready):
    """Who has connected.

    Attributes:
        is_lost: Whether it has reset the connection, or its machine does not answer.
    """

    is_lost = False

    def _read(self, room: memoryview) -> int:
        try:
            return super()._read(room)
        except BlockingIOError:
            raise
        except OSError:
            self.is_lost = True
            return 0


@asynccontextmanager
async def reaching(rank: Rank, container: str, *, outside: bool) -> AsyncIterator[Reach]:
    """Reach the network of a container while the block runs.

    With the first connection its shim is asked whether we can do so without it. `outside`: see
    `Job.reaching`.
    """
    beside: Beside | None = None
    is_known = rank.hello.protocol < BESIDE
    lock = trio.Lock()

    async def find() -> None:
        nonlocal beside, is_known
        if is_known:  # another connection has come first
            return
        try:
            if (found := await _way(rank, container)) is not None:
                beside = stack.enter_context(Beside(found[0], outside=outside))
                await beside.enter()
        finally:
            is_known = True

    async def reach(client: trio.socket.SocketType, port: int) -> None:
        if not is_known:
            async with lock:
                await find()
        if beside is None or beside.is_over:
            await connect(rank, container, port, client, outside=outside)
        else:
            await beside.reach(client, port)

    with ExitStack() as stack:
        yield reach


async def _way(rank: Rank, container: str) -> tuple[socket.socket | None] | None:
    """Ask whether the shim's machine is this one; return what `Beside` takes, or None."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")  # the kernel has a name for it, in this network
        listener.listen()
        listener.setblocking(False)
        name = listener.getsockname()[1:].decode()
        fields = {"container": container, "place": host(SAME), "pid": os.getpid(), "name": name}
        with trio.move_on_after(_PATIENCE), suppress(ShimError, OSError):
            way = (await rank.shim.call("reach", **fields))["way"]
            if way == "own":
                return (None,)
            if way == "line":
                return (_line(listener, rank.hello.pid),)
    return None


def _line(listener: socket.socket, shim: int) -> socket.socket:
    """Take what a shim has sent, whoever has connected, too; OSError if that is missing."""
    while True:
        with listener.accept()[0] as sock:
            if (peer_pid(sock), peer_uid(sock)) == (shim, os.geteuid()):
                sock.setblocking(False)
                got = sock.recvmsg(1, RIGHTS, socket.MSG_CMSG_CLOEXEC)
                return socket.socket(fileno=socket_of(*got))


async def connect(
    rank: Rank, container: str, port: int, client: trio.socket.SocketType, *, outside: bool = False
) -> None:
    """Carry bytes between a client and a port of a container until both directions have ended.

    Raises:
        EngineError: It cannot be connected to, an end has reset the connection, or the shim has
            gone, or does not answer.
    """
    await _carry(rank, "connect", client, container=container, port=port, outside=outside)


async def attach(rank: Rank, server: trio.socket.SocketType, **which: object) -> None:
    """Carry bytes of a connection that a container has made, as `connect` does.

    `which`: which one, as fields of the call.
    """
    await _carry(rank, "attach", server, **which)


async def _carry(rank: Rank, verb: str, client: trio.socket.SocketType, **fields: object) -> None:
    shim, table = rank.shim, rank.shim.table
    is_early = rank.hello.protocol >= EARLY
    number = table.number()
    incoming = Incoming(table.link, number, "stdout", lambda _: None)
    outgoing = _ToServer(incoming)
    table.incoming[number], table.outgoing[number] = incoming, outgoing
    own = _Client(client.fileno())

    def along() -> None:
        if is_early:
            outgoing.begin(own)

    async def sent(reply: Awaited) -> None:
        if not shim.lost.is_set():
            await _answered(shim, str(fields["container"]), reply.known)

    is_over = False
    try:
        async with unwrapped() as nursery:

            @nursery.start_soon
            async def send() -> None:
                await outgoing.pump(nullcontext(own))
                if own.is_lost:  # the server may never say anything to it
                    nursery.cancel_scope.cancel()

            await shim.call(verb, along, sent, stream=number, **fields)
            outgoing.begun.set()
            await incoming.pump(nullcontext(own))
            if not (outgoing.is_reset or shim.lost.is_set()):
                with suppress(OSError):  # the client has gone
                    client.shutdown(socket.SHUT_WR)
        if own.is_lost or outgoing.is_reset or shim.lost.is_set():
            raise EngineError("the connection was reset")
        is_over = is_early
    finally:
        table.forget(number)
        if not is_over:
            shim.tell("disconnect", stream=number)


async def _answered(shim: Shim, container: str, reply: trio.Event) -> None:
    """Wait for a reply while the shim answers anything at all: a server may be slow.

    A client does not wait for a node that is cut off: the network tells that much later.

    Raises:
        EngineError: It does not answer.
    """
    with trio.move_on_after(_PATIENCE):
        await reply.wait()
        return
    with trio.move_on_after(_PATIENCE), suppress(ShimError):
        await shim.call("handles", id=container, number=SIGTERM)
        return
    if not reply.is_set():
        raise EngineError(f"its node has not answered for {2 * _PATIENCE:g} s")


async def serve(rank: Rank, engine: EngineSide, **which: object) -> None:
    """Serve them until this is cancelled, or the shim has gone.

    Args:
        engine: The engine's networks, or sockets.
        which: The container, and which of these, as fields of the calls.
    """
    room = trio.Semaphore(_MOST)
    async with unwrapped() as nursery:
        while True:
            await room.acquire()
            try:
                arrived = await rank.shim.call("accept", **which)
            except (ShimError, ShimLost):  # the container has ended; or it cannot do that
                return
            nursery.start_soon(_serve, rank, which, arrived, engine, room)


async def _serve(
    rank: Rank,
    which: dict[str, object],
    arrived: dict[str, Any],
    engine: EngineSide,
    room: trio.Semaphore,
) -> None:
    which = {**which, "number": arrived["number"]}
    try:
        path, addresses = arrived["path"], arrived["addresses"]
        if not (path or addresses):
            answer = await engine.ask(base64.b64decode(arrived["text"]))
            text = base64.b64encode(answer).decode()
            rank.shim.tell("answer", **which, text=text)
            return
        [address] = addresses or [(path, 0)]
        with await engine.connect(*address) as server:
            await attach(rank, server, **which)
    except (ScrunError, OSError, ValueError):
        rank.shim.tell("refuse", **which)
    finally:
        room.release()
