"""Connections past a shim on this machine. A test plays the shim, and what makes sockets."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from scrun.core.errors import EngineError
from scrun.supervisor.contracts.networks import Reach
from scrun.supervisor.nodes import beside
from scrun.supervisor.nodes.beginning import Rank
from scrun.supervisor.nodes.connected import reaching
from scrun.supervisor.shim.network import SAME, host
from scrun.supervisor.wire.frames import BESIDE, CALL, PROTOCOL
from tests.harness.networks import answered, full_server
from tests.harness.peer import Peer, talking

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")

QUESTION = b"question"

_STRANGER = """
import socket, sys
with socket.socket(socket.AF_UNIX) as sock, socket.socket() as other:
    sock.connect(b"\\0" + sys.argv[1].encode())
    socket.send_fds(sock, [b"x"], [other.fileno()])
    print(flush=True)
    try:
        sock.recv(1)
    except ConnectionResetError:
        pass
"""


@asynccontextmanager
async def reached(protocol: int = PROTOCOL) -> AsyncIterator[tuple[Reach, Peer, int]]:
    """A container's network, its shim, which is this process, and the port of an echo there."""
    async with trio.open_nursery() as nursery, talking(direct=True) as (shim, peer):
        [server] = await nursery.start(partial(trio.serve_tcp, _echo, 0, host="127.0.0.1"))
        hello = msgspec.structs.replace(await shim.hello(), protocol=protocol, pid=os.getpid())
        async with reaching(Rank(shim, hello, 0), "c", outside=False) as reach:
            yield reach, peer, server.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def _echo(stream: trio.SocketStream) -> None:
    async for part in stream:
        await stream.send_all(part)


@asynccontextmanager
async def connecting(reach: Reach, port: int) -> AsyncIterator[trio.SocketStream]:
    """A client; when it goes, its connection is given up."""
    ours, theirs = (trio.socket.from_stdlib_socket(end) for end in socket.socketpair())
    async with trio.open_nursery() as nursery, trio.SocketStream(theirs) as client:

        @nursery.start_soon
        async def carry() -> None:
            with ours:
                await reach(ours, port)

        yield client
        nursery.cancel_scope.cancel()


async def answer_to(client: trio.SocketStream) -> bytes:
    await client.send_all(QUESTION)
    await client.send_eof()
    return b"".join([bytes(part) async for part in client])


def _make_sockets(line: socket.socket, most: int) -> None:
    """Do what `shim.network.serve` does, here, and end after so many."""
    with line, contextlib.suppress(ConnectionError):  # nobody has taken the last one
        line.sendall(b"\0")
        for _ in range(most):
            if order := line.recv(1):
                with socket.socket(order[0]) as made:
                    socket.send_fds(line, [b"\0"], [made.fileno()])


async def give_line(peer: Peer, call: dict[str, Any], most: int = 100) -> None:
    here, there = socket.socketpair()
    threading.Thread(target=_make_sockets, args=(there, most)).start()
    with here:
        await give(peer, call, here)


async def give(peer: Peer, call: dict[str, Any], line: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(b"\0" + call["name"].encode())
        socket.send_fds(sock, [b"\0"], [line.fileno()])
    await peer.reply(call, way="line")


async def next_call(peer: Peer, verb: str) -> None:
    """Take frames until a call, which is this one."""
    while True:
        kind, _, payload = await peer.frame()
        if kind == CALL:
            assert json.loads(payload)["verb"] == verb
            return


@pytest.mark.covers("security connect to the socket at which it waits for what a shim gives it")
async def test_a_stranger_is_first() -> None:
    """What it gives is not used; and once more than one connection is made, nobody is asked."""
    async with reached() as (reach, peer, port):
        async with connecting(reach, port) as client:
            call = await peer.call("reach")
            assert (call["container"], call["place"]) == ("c", host(SAME))
            assert call["pid"] == os.getpid()
            command = [sys.executable, "-c", _STRANGER, call["name"]]
            stranger = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
            assert stranger.stdout
            async with stranger.stdout:
                assert await stranger.stdout.receive_some() == b"\n"
            await give_line(peer, call)
            assert await answer_to(client) == QUESTION
            assert await stranger.wait() == 0
        for _ in range(3):
            async with connecting(reach, port) as client:
                assert await answer_to(client) == QUESTION


async def test_its_network_is_ours() -> None:
    async with reached() as (reach, peer, port), connecting(reach, port) as client:
        await peer.reply(await peer.call("reach"), way="own")
        assert await answer_to(client) == QUESTION


async def test_a_server_that_is_slow_to_accept() -> None:
    with full_server() as (server, port):
        async with reached() as (reach, peer, _), connecting(reach, port) as client:
            await peer.reply(await peer.call("reach"), way="own")
            await client.send_all(QUESTION)
            assert await trio.to_thread.run_sync(answered, server) == QUESTION


@pytest.mark.parametrize("reply", [{"way": ""}, {"error": "no descriptor is left"}])
async def test_by_its_shim_instead(reply: dict[str, str]) -> None:
    """It is asked once."""
    async with reached() as (reach, peer, port):
        async with connecting(reach, port):
            await peer.reply(await peer.call("reach"), **reply)
            await next_call(peer, "connect")
        async with connecting(reach, port):
            await next_call(peer, "disconnect")
            await next_call(peer, "connect")


async def test_an_older_shim() -> None:
    async with reached(BESIDE - 1) as (reach, peer, port), connecting(reach, port):
        await next_call(peer, "connect")


async def test_what_makes_sockets_has_gone() -> None:
    """A connection may fail by that; the next one is the shim's."""
    async with reached() as (reach, peer, port):
        async with connecting(reach, port) as client:
            await give_line(peer, await peer.call("reach"), most=1)
            assert await answer_to(client) == QUESTION
        with pytest.RaisesGroup(OSError, flatten_subgroups=True):
            async with connecting(reach, port) as client:
                await client.receive_some()
        async with connecting(reach, port):
            await next_call(peer, "connect")


async def test_its_network_cannot_be_entered() -> None:
    """That fails one connection; the next ones are the shim's."""
    async with reached() as (reach, peer, port):
        here, there = socket.socketpair()
        there.close()
        with here, pytest.RaisesGroup(EngineError, flatten_subgroups=True):
            async with connecting(reach, port) as client:
                await give(peer, await peer.call("reach"), here)
                await client.receive_some()
        async with connecting(reach, port):
            await next_call(peer, "connect")


async def test_another_comes_while_its_network_is_entered() -> None:
    """That one does without its shim, too."""
    here, there = socket.socketpair()
    async with reached() as (reach, peer, port), connecting(reach, port) as first:
        with here:
            await give(peer, await peer.call("reach"), here)
        await trio.testing.wait_all_tasks_blocked(0.05)
        async with connecting(reach, port) as second:
            await trio.testing.wait_all_tasks_blocked(0.05)
            threading.Thread(target=_make_sockets, args=(there, 100)).start()
            for client in (first, second):
                assert await answer_to(client) == QUESTION


async def test_a_job_that_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_PATIENCE", 0.2)
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b"\0")
        with pytest.RaisesGroup(EngineError, flatten_subgroups=True):
            async with reached() as (reach, peer, port), connecting(reach, port):
                await give(peer, await peer.call("reach"), here)
                await trio.sleep(20)
