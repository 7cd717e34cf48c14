"""A node that lies: what it says has a size, a count and a form."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack

import pytest
import trio

from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.nodes.connection import Shim, ShimLost
from scrun.supervisor.nodes.counted import CountedSource, Ring
from scrun.supervisor.nodes.messages import (
    LONGEST_EVENT,
    LONGEST_REPLY,
    STREAMS,
    Hello,
    Reply,
    is_end,
    longest_reply,
)
from scrun.supervisor.nodes.resumed import ResumedShim, reconnected
from scrun.supervisor.wire.frames import (
    CALL,
    CLOSED,
    CREDIT,
    CREDIT_BYTES,
    END,
    EVENT,
    HEADER,
    LINE,
    LONGEST,
    REPLY,
    SCRIPT_OUTPUT,
    WINDOW,
)
from tests import CHECKOUT
from tests.harness.peer import HELLO, Peer, Said, talking

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")

IMPOSSIBLE = (-1, 127, 255 << 8 | 1, 510, 0x1_0000, 0xFFFF, 0x7F, 0xFF, 200, 1 << 40, -256)


@pytest.mark.parametrize("status", [0, 1 << 8, 255 << 8, 1, 9, 9 | 0x80, 64, 15])
def test_statuses_of_ends(status: int) -> None:
    assert is_end(status)
    assert -65 < os.waitstatus_to_exitcode(status) < 256


@pytest.mark.parametrize("status", IMPOSSIBLE)
def test_statuses_of_nothing(status: int) -> None:
    assert not is_end(status)


@pytest.mark.covers("security statuses, counts and positions that cannot be")
@pytest.mark.parametrize("status", [*IMPOSSIBLE, 1.5, "0", None, True, 2**70])
async def test_impossible_statuses_are_refused(status: object) -> None:
    async with talking() as (shim, peer), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def create() -> None:
            await shim.call("create", id="c")

        await peer.reply(await peer.call("create"), pid=7)
        await peer.event(event="ended", target="c", status=status)
        with trio.fail_after(10), pytest.raises(ShimLost):
            await shim.ended("c")


async def test_ends_of_what_nobody_knows_are_not_remembered() -> None:
    async with talking() as (shim, peer), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def create() -> None:
            await shim.call("create", id="c")

        await peer.reply(await peer.call("create"), pid=7)
        for number in range(100):
            await peer.event(event="ended", target=f"x{number}", status=0, memory=True, lost=True)
        await peer.event(event="ended", target="c", status=256, memory=True)
        await peer.event(event="ended", target="c", status=512, lost=True)
        await peer.hello(node="another")
        assert await shim.ended("c") == 256
        with trio.fail_after(10):
            await (await shim_has_read(shim, peer)).wait()
        assert (shim.short_of_memory, shim.without_files) == ({"c"}, set())
        assert await shim.ended("c") == 256
        assert (await shim.hello()).node == "node1"


async def shim_has_read(shim: Shim, peer: Peer) -> trio.Event:
    """Wait until all that the peer has sent was taken."""
    done = trio.Event()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def ask() -> None:
            await shim.call("resize", id="c")
            done.set()

        await peer.reply(await peer.call("resize"))
    return done


@pytest.mark.covers("security make the supervisor large, by messages of any size and number")
@pytest.mark.parametrize("kind", [CALL, REPLY, EVENT, CREDIT, END, CLOSED, LINE])
async def test_frames_that_are_too_long(kind: int) -> None:
    """They are refused by their header: nothing of them is kept."""
    most = {REPLY: LONGEST_REPLY, EVENT: LONGEST_EVENT, CREDIT: 4, LINE: 1}.get(kind, 0)
    async with talking() as (shim, peer):
        await peer.control[1].send_all(HEADER.pack(kind, 1, most + 1))
        with trio.fail_after(10):
            await shim.lost.wait()


@pytest.mark.parametrize("verb", ["script", "create", "handles"])
async def test_replies_have_a_size_for_each_call(verb: str) -> None:
    """A script's may be long, and another call's not meanwhile."""
    longest = longest_reply(verb)
    assert longest >= (SCRIPT_OUTPUT if verb == "script" else 1 << 16)
    async with talking() as (shim, peer), trio.open_nursery() as nursery:

        async def call(name: str) -> None:
            with pytest.raises(ShimLost):
                await shim.call(name, id="c")

        nursery.start_soon(call, "script")
        script = await peer.call("script")
        nursery.start_soon(call, verb)
        other = await peer.call(verb)
        empty = json.dumps({"call": other["call"], "text": ""}).encode()
        fits = empty[:-2] + b"x" * (longest - len(empty)) + empty[-2:]
        if verb == "script":
            assert len(fits) == LONGEST
        else:
            await peer.send(REPLY, 0, fits[:-2] + b'x"}')
            with trio.fail_after(10):
                await shim.lost.wait()
        assert script["call"] != other["call"]
        shim.left()


def test_what_nobody_asked_for_is_not_read() -> None:
    assert "nonsense" not in Reply.__struct_fields__


@pytest.mark.parametrize(
    "said",
    [
        b'{"event": "ended", "x": ' + b"[" * 500_000,
        b"[" * 1_000_000,
        b'{"event": ' * 100_000,
        b'{"event": "hello", "node": "' + b"n" * 5000 + b'"}',
        json.dumps({**HELLO, "environment": {str(n): "" for n in range(100)}}).encode(),
        json.dumps({**HELLO, "environment": {"A": "a" * 5000}}).encode(),
        json.dumps({**HELLO, "pid": -1}).encode(),
        json.dumps({**HELLO, "pid": 2**64}).encode(),
    ],
)
async def test_events_that_are_too_much(said: bytes) -> None:
    async with talking() as (shim, peer):
        await peer.send(EVENT, 0, said)
        with trio.fail_after(10):
            await shim.lost.wait()


@pytest.mark.covers("security more of a stream than was allowed, or credit without end")
async def test_credit_without_end() -> None:
    """No stream may have more on its way than its window, whatever the reader says."""
    async with talking() as (shim, peer):
        with ExitStack() as stack:
            null = os.open(os.devnull, os.O_RDWR)
            here, there = os.pipe()
            for fd in (here, there, null):
                stack.callback(os.close, fd)
            stdio = (here, null, null)
            async with shim.streams(stdio, False, ChildEnv({})) as streams:
                await peer.send(CREDIT, streams.fields["stdin"], CREDIT_BYTES.pack(1))
                with trio.fail_after(10):
                    await shim.lost.wait()


@pytest.mark.covers("security statuses, counts and positions that cannot be")
@pytest.mark.parametrize(
    "lie",
    [
        {"times": 0},
        {"times": -1},
        {"times": (1 << 32) // STREAMS},
        {"times": 2**62},
        {"inputs": {"1": [-1, 0]}},
        {"inputs": {"1": [0, WINDOW + 1]}},
        {"inputs": {"1": [0, -1]}},
        {"targets": {"c": {"started": True, "ended": [510, False, False]}}},
        {"targets": {"c": {"started": True, "ended": [-1, False, False]}}},
        {"targets": {"c": {"started": True, "ended": [0, 5, False]}}},
    ],
    ids=str,
)
async def test_a_resumed_shim_that_lies(lie: dict[str, object]) -> None:
    there, to_srun = os.pipe()
    from_srun, back = os.pipe()
    peer = Peer(trio.lowlevel.FdStream(there), trio.lowlevel.FdStream(back))
    hello = Hello(protocol=1, node="n", pid=1, environment={"SLURM_SRUN_COMM_HOST": "127.0.0.1"})
    try:
        async with (
            reconnected(to_srun, from_srun, Said().journal) as shim,
            trio.open_nursery() as nursery,
        ):

            @nursery.start_soon
            async def resume() -> None:
                with trio.fail_after(10), pytest.raises(ShimLost):
                    await shim.resume(hello, {"c": "c"}, {}, None)

            assert isinstance(shim, ResumedShim)
            call = await peer.call("resume")
            assert await peer.dial({**call, "port": call["addresses"][0][1]})
            await peer.event(event="resumed", token=call["token"], **{"times": 1, **lie})
    finally:
        with trio.CancelScope(shield=True):
            await peer.close()


@pytest.mark.parametrize("position", [-5, 0, 5, 1 << 40])
async def test_input_from_where_there_is_none(position: int) -> None:
    """It begins at the nearest byte that is there."""
    ring = Ring(None, WINDOW)
    ring.begin(3, 3)
    ring.at(0, 3)[:] = b"abc"
    ring.put(3)
    source = CountedSource(None, lambda _: None, ring)
    try:
        source.go_to(position)
        room = memoryview(bytearray(10))
        count = await source.read_into(room)
        assert bytes(room[:count]) == (b"abc" if position <= 0 else b"")
    finally:
        source.close()


_MEMORY = """
import json, os, resource, sys
import trio
from tests.harness.peer import talking
from scrun.supervisor.wire.frames import EVENT, LONGEST, REPLY, frame

async def main(lies):
    async with talking() as (shim, peer), trio.open_nursery() as nursery:
        async def call(verb):
            await shim.call(verb, id="c")
        async def say(kind, payload):
            await peer.control[1].send_all(frame(kind, 0, payload))
        nursery.start_soon(call, "create")
        await peer.reply(await peer.call("create"), pid=7)
        for _ in range(3):
            nursery.start_soon(call, "script")
            number = (await peer.call("script"))["call"]
            if lies:
                begins = b'{"call": %d, "x": [' % number
                count = (LONGEST - len(begins) - 10) // 3
                await say(REPLY, begins + b"[]," * count + b"[]]}")
            else:
                text = "x" * (LONGEST - 100)
                await say(REPLY, json.dumps({"call": number, "status": 0, "text": text}).encode())
        if lies:
            for number in range(30000):
                target = str(number).rjust(200, "x")
                event = {"event": "ended", "target": target, "status": 0, "memory": True,
                         "lost": True}
                await say(EVENT, json.dumps(event).encode())
            await say(EVENT, b'{"event": "unknown", "x": [' + b"[]," * 300000 + b"[]]}")
            for _ in range(1000):
                await say(REPLY, b'{"call": 99999, "text": "' + b"x" * 1000 + b'"}')
        nursery.start_soon(call, "resize")
        await peer.reply(await peer.call("resize"))
trio.run(main, sys.argv[1] == "lies")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def most_memory(*arguments: str) -> int:
    command = [sys.executable, "-c", _MEMORY, *arguments]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.covers("security make the supervisor large, by messages of any size and number")
def test_memory() -> None:
    """A node that says as much as it may, none of it true, takes hardly more than another one."""
    honest, lying = most_memory("honest"), most_memory("lies")
    assert lying <= 1.5 * honest, (honest, lying)
