"""Forwarding that ends as soon as it begins (`test_forward` has what it carries)."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import trio

from scrun.supervisor.sessions.forwarding import forward

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
