"""Forwarding that ends as soon as it begins (`test_forward` has what it carries)."""

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio

from scrun.supervisor.sessions.forwarding import forward, why_refused

TIMES = 40
"""Of two tasks that trio may run either may be the first one."""


@asynccontextmanager
async def reaching() -> AsyncIterator[None]:
    yield None


async def test_a_container_that_ends_before_anybody_listens() -> None:
    ended = trio.Event()
    ended.set()
    job = SimpleNamespace(reaching=reaching)

    async def running(what: str) -> SimpleNamespace:
        return SimpleNamespace(job=job)

    container = SimpleNamespace(id="c", ended=ended, running=running)
    ours, theirs = trio.socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listener:
        for _ in range(TIMES):
            await forward(container, ours, [listener.fileno()], [80])  # type: ignore[arg-type]
        assert await theirs.recv(2 * TIMES) == bytes(TIMES)


RESET = struct.pack("ii", 1, 0)


@pytest.mark.parametrize("how", ["at once", "with a word", "by a reset"])
def test_a_client_that_has_gone(how: str) -> None:
    """As `nc -z` has: nobody knows whose it was, but it is not said to be another user's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            if how == "with a word":
                client.sendall(b"word")
            if how == "by a reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        with trio.socket.from_stdlib_socket(server.accept()[0]) as accepted:
            assert why_refused(accepted).startswith("a client had gone")


def test_a_client_of_our_own() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        client.shutdown(socket.SHUT_WR)
        with trio.socket.from_stdlib_socket(server.accept()[0]) as accepted:
            assert why_refused(accepted) == ""
