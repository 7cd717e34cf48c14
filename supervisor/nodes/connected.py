"""A connection to a port of a container, between a socket here and its shim."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import trio

from scrun.core.errors import EngineError
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.nodes.ends import Sink, sink, source
from scrun.supervisor.nodes.streams import Incoming, Outgoing, StreamTable

_PATIENCE = 2.5


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
        self.is_reset = not self._incoming.ended
        super().close()


async def carry(
    table: StreamTable,
    lost: trio.Event,
    connect: Callable[[int], Awaitable[object]],
    answers: Callable[[], Awaitable[object]],
    client: trio.socket.SocketType,
    child_env: ChildEnv,
) -> None:
    """Carry bytes between a client and a server, until both directions have ended.

    Args:
        lost: Set when the shim has gone.
        connect: Lets the shim connect, for the stream of this number.
        answers: Returns as soon as the shim has answered anything: a server may be slow.

    Raises:
        EngineError: The server has reset the connection, the shim has gone, or does not answer;
            what `connect` raises.
    """
    number = table.number()
    incoming = Incoming(table.link, number, "stdout", lambda _: None)
    outgoing = _ToServer(incoming)
    table.incoming[number], table.outgoing[number] = incoming, outgoing

    @asynccontextmanager
    async def to_client() -> AsyncIterator[Sink]:
        async with sink(client.fileno(), child_env) as found:
            yield found
        if not (outgoing.is_reset or lost.is_set()):
            with suppress(OSError):  # the client has gone
                client.shutdown(socket.SHUT_WR)

    try:
        async with unwrapped() as nursery:
            nursery.start_soon(incoming.pump, to_client())
            watch = trio.CancelScope()
            nursery.start_soon(_watch, watch, answers)
            await connect(number)
            watch.cancel()
            outgoing.begun.set()
            nursery.start_soon(outgoing.pump, source(client.fileno(), child_env))
        if outgoing.is_reset or lost.is_set():
            raise EngineError("the connection was reset")
    finally:
        table.forget(number)


async def _watch(scope: trio.CancelScope, answers: Callable[[], Awaitable[object]]) -> None:
    """End a client's waiting for a node that is cut off: the network tells that much later.

    Raises:
        EngineError: It is.
    """
    with scope:
        await trio.sleep(_PATIENCE)
        with trio.move_on_after(_PATIENCE):
            await answers()
            return
        raise EngineError(f"its node has not answered for {2 * _PATIENCE:g} s")
