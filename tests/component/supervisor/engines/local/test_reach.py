"""Bytes between a client's socket and a server of this machine."""

import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from scrun.core.errors import EngineError
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.engines.local.job import reaching

DATA = os.urandom(24 << 20)
"""More than sockets and a pipe hold."""


async def _listening(nursery: trio.Nursery, serve: Callable[..., Awaitable[None]]) -> int:
    [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
    port: int = listener.socket.getsockname()[1]
    return port


@asynccontextmanager
async def reached(serve: Callable[..., Awaitable[None]]) -> AsyncIterator[trio.SocketStream]:
    """Have a client's stream to a server."""
    async with trio.open_nursery() as nursery, reaching(os.getpid(), ChildEnv({})) as reach:
        port = await _listening(nursery, serve)

        async def pass_on(client: trio.SocketStream) -> None:
            await reach(client.socket, port)

        async with await trio.open_tcp_stream(
            "127.0.0.1", await _listening(nursery, pass_on)
        ) as client:
            yield client
        nursery.cancel_scope.cancel()


async def _read(stream: trio.SocketStream, pause: float) -> bytes:
    """Read to the end, after a pause in which nothing more is taken."""
    found = bytearray()
    await trio.sleep(pause)
    async for part in stream:
        found += part
    return bytes(found)


async def test_a_slow_client_gets_all() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(DATA)

    async with reached(serve) as client:
        assert await _read(client, 0.3) == DATA


async def test_a_slow_server_gets_all_and_answers_then() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(b"all" if await _read(stream, 0.3) == DATA else b"other")

    async with reached(serve) as client:
        await client.send_all(DATA)
        await client.send_eof()
        assert await _read(client, 0) == b"all"


async def test_a_reset_is_told() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some(1)
        stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, struct.pack("ii", 1, 0))

    with pytest.RaisesGroup(EngineError, flatten_subgroups=True):
        async with reached(serve) as client:
            await client.send_all(b"x")
            await _read(client, 0)
            await trio.sleep(20)
