"""A connection to a container's port, against a shim that a test plays."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio

from scrun.core.errors import EngineError
from scrun.supervisor.nodes.beginning import Rank
from scrun.supervisor.nodes.connected import connect
from scrun.supervisor.wire.frames import CLOSED, DATA, EARLY, END, PROTOCOL
from tests.harness.peer import Peer, talking

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")

QUESTION, ANSWER = b"question", b"answer"


class Client:
    """Who connects.

    Attributes:
        socket: Its end.
        error: Why the connection failed.
    """

    def __init__(self, end: trio.SocketStream) -> None:
        self.socket = end
        self.error = ""
        self.over = trio.Event()


@asynccontextmanager
async def connecting(protocol: int) -> AsyncIterator[tuple[Client, Peer, dict[str, Any]]]:
    """A client that has said something, and the call that the shim gets."""
    theirs, ours = (trio.socket.from_stdlib_socket(end) for end in socket.socketpair())
    async with talking(direct=True) as (shim, peer), trio.open_nursery() as nursery:
        hello = msgspec.structs.replace(await shim.hello(), protocol=protocol)
        rank = Rank(shim, hello, 0)
        client = Client(trio.SocketStream(theirs))
        await client.socket.send_all(QUESTION)

        @nursery.start_soon
        async def carry() -> None:
            with ours:
                try:
                    await connect(rank, "c", 80, ours)
                except EngineError as error:
                    client.error = str(error)
            client.over.set()

        async with client.socket:
            yield client, peer, await peer.call("connect")
            await client.over.wait()


async def test_bytes_do_not_wait_for_the_server() -> None:
    """A shim of today gets them behind the call, and forgets a connection that has ended."""
    async with connecting(PROTOCOL) as (client, peer, call):
        assert await peer.frame() == (DATA, call["stream"], QUESTION)
        await peer.reply(call)
        await peer.send(DATA, call["stream"], ANSWER)
        await peer.send(END, call["stream"])
        assert await client.socket.receive_some() == ANSWER
        assert await client.socket.receive_some() == b""
        await client.socket.send_eof()
        assert await peer.frame() == (END, call["stream"], b"")
        with trio.move_on_after(0.2) as patience:
            await peer.frame()
        assert patience.cancelled_caught
    assert not client.error


async def test_an_older_shim() -> None:
    """It takes them from its reply on, and is told that the connection is over."""
    async with connecting(EARLY - 1) as (client, peer, call):
        with trio.move_on_after(0.2) as patience:
            await peer.frame()
        assert patience.cancelled_caught
        await peer.reply(call)
        assert await peer.frame() == (DATA, call["stream"], QUESTION)
        await peer.send(END, call["stream"])
        await client.socket.send_eof()
        assert await peer.frame() == (END, call["stream"], b"")
        assert (await peer.call("disconnect"))["stream"] == call["stream"]
    assert not client.error


@pytest.mark.parametrize("kinds", [(CLOSED, END), (CLOSED, END, CLOSED)])
async def test_a_server_that_resets_it(kinds: tuple[int, ...]) -> None:
    """Both directions of the shim notice that, in any order."""
    async with connecting(PROTOCOL) as (client, peer, call):
        assert await peer.frame() == (DATA, call["stream"], QUESTION)
        await peer.reply(call)
        await peer.send_at_once(*((kind, call["stream"], b"") for kind in kinds))
        assert await peer.frame() == (END, call["stream"], b"")
        with trio.fail_after(5):
            assert (await peer.call("disconnect"))["stream"] == call["stream"]
    assert client.error == "the connection was reset"


async def test_a_client_that_resets_it() -> None:
    """It is over, though the server neither says nor hears anything."""
    async with connecting(PROTOCOL) as (client, peer, call):
        assert await peer.frame() == (DATA, call["stream"], QUESTION)
        await peer.reply(call)
        await peer.send(DATA, call["stream"], ANSWER)
        await trio.lowlevel.wait_readable(client.socket.socket)
        await client.socket.aclose()  # with unread bytes, which unix(7) tells as a reset
        assert await peer.frame() == (END, call["stream"], b"")
        with trio.fail_after(5):
            assert await peer.frame() == (CLOSED, call["stream"], b"")
            assert (await peer.call("disconnect"))["stream"] == call["stream"]
    assert client.error == "the connection was reset"


async def test_nobody_listens() -> None:
    async with connecting(PROTOCOL) as (client, peer, call):
        assert await peer.frame() == (DATA, call["stream"], QUESTION)
        await peer.reply(call, error="Connection refused")
        await client.over.wait()
    assert client.error == "Connection refused"
