"""A shim that another supervisor has left, of this version or another."""

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from scrun.supervisor.nodes.messages import Hello, ShimError, ShimLost
from scrun.supervisor.nodes.resumed import ResumedShim, reconnected
from scrun.supervisor.wire.frames import EVENT, PROTOCOL
from scrun.supervisor.wire.seals import PLAIN, Plain, sealed
from tests.harness.frames import framed
from tests.harness.peer import HELLO, Peer, Said, prove

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")


@asynccontextmanager
async def left() -> AsyncIterator[tuple[ResumedShim, Peer]]:
    there, to_srun = os.pipe()
    from_srun, back = os.pipe()
    peer = Peer(trio.lowlevel.FdStream(there), trio.lowlevel.FdStream(back))
    try:
        async with reconnected(to_srun, from_srun, Said().journal) as shim:
            yield shim, peer
    finally:
        with trio.CancelScope(shield=True):
            await peer.close()


def hello(protocol: int) -> Hello:
    return msgspec.convert({**HELLO, "protocol": protocol}, Hello)


async def answer(peer: Peer, protocol: int, targets: Mapping[str, Any] | None = None) -> None:
    """Be a shim that goes on, with what it says of its containers and programs."""
    call: dict[str, Any] = await peer.call("resume")
    assert call["protocol"] == PROTOCOL
    _, port = call["addresses"][-1]
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    secret = bytes.fromhex(call["secret"])
    both = await prove(stream, secret)
    seal: Plain = sealed(secret, both, call["seal_streams"])[0] if protocol > 1 else PLAIN
    said = {"event": "resumed", "token": call["token"], "times": 1, "targets": targets or {}}
    await stream.send_all(framed(seal, EVENT, 0, json.dumps(said).encode()))
    peer.stream = stream


@pytest.mark.parametrize("protocol", [1, PROTOCOL])
async def test_one_that_goes_on(protocol: int) -> None:
    async with left() as (shim, peer), trio.open_nursery() as nursery:
        nursery.start_soon(answer, peer, protocol)
        with trio.fail_after(20):
            await shim.resume(hello(protocol), {}, {}, None)
        assert shim.is_direct
        assert not shim.lost.is_set()


async def test_the_connection_is_tampered_with() -> None:
    """The shim says so over srun; what it said to the other does not count."""
    async with left() as (shim, peer), trio.open_nursery() as nursery:
        nursery.start_soon(answer, peer, PROTOCOL)
        with trio.fail_after(20):
            await shim.resume(hello(PROTOCOL), {}, {}, None)
        direct, peer.stream = peer.stream, None
        await peer.event(event="forged", error="frame 7 was changed", times=0)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not shim.lost.is_set()
        await peer.event(event="forged", error="frame 7 was changed", times=1)
        with trio.fail_after(20):
            await shim.lost.wait()
        with pytest.raises(ShimLost, match="direct connection: frame 7 was changed"):
            await shim.call("script", script="true")
        peer.stream = direct


async def test_one_of_this_version_without_seals() -> None:
    """Somebody on the way would like that."""
    async with left() as (shim, peer), trio.open_nursery() as nursery:
        nursery.start_soon(answer, peer, 1)
        with trio.fail_after(20), pytest.raises(ShimLost, match="frame 1 was changed"):
            await shim.resume(hello(PROTOCOL), {}, {}, None)


async def test_one_of_a_newer_version() -> None:
    async with left() as (shim, _):
        with pytest.raises(ShimError, match=f"speaks protocol {PROTOCOL + 1}"):
            await shim.resume(hello(PROTOCOL + 1), {}, {}, None)
