"""A shim as engines see it: greeting, calls, ends, and what happens when it goes."""

import json
import os

import pytest
import trio

from scrun.supervisor.nodes.connection import ShimError, ShimLost
from scrun.supervisor.wire.frames import EVENT, LONGEST, REPLY, frame
from tests.harness.peer import HELLO, Said, played, talking

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")


async def test_hello() -> None:
    async with played() as (shim, peer):
        await peer.hello(node="node7", python="3.11.2")
        hello = await shim.hello()
        assert (hello.node, hello.runtime, hello.pid) == ("node7", "/usr/bin/crun", 7)
        assert hello.environment == {"SLURM_JOB_ID": "1"}
        assert await shim.hello() == hello


async def test_hello_in_pieces() -> None:
    async with played() as (shim, peer):
        for byte in frame(EVENT, 0, json.dumps(HELLO).encode()):
            await peer.control[1].send_all(bytes([byte]))
        assert (await shim.hello()).node == "node1"


@pytest.mark.covers("security print on the step's standard output")
async def test_a_prologs_words_before_hello() -> None:
    """Slurm's TaskProlog may print to the task's standard output."""
    said = Said()
    async with played(said) as (shim, peer):
        await peer.control[1].send_all("prölog says\nhi\n".encode())
        await peer.control[1].send_all(b"more\n" + frame(EVENT, 0, json.dumps(HELLO).encode())[:7])
        await trio.sleep(0.02)
        await peer.control[1].send_all(frame(EVENT, 0, json.dumps(HELLO).encode())[7:])
        assert (await shim.hello()).node == "node1"
    assert "prölog says\nhi\nmore" in said


@pytest.mark.covers("security print without end there")
async def test_nothing_but_other_words() -> None:
    async with played() as (shim, peer):

        async def chatter() -> None:
            with pytest.raises(trio.BrokenResourceError):
                await peer.control[1].send_all(b"y\n" * (1 << 20))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(chatter)
            with pytest.raises(ShimLost, match="not a frame"):
                await shim.hello()


async def test_another_protocol() -> None:
    async with played() as (shim, peer):
        await peer.hello(protocol=99)
        with pytest.raises(ShimLost, match="speaks protocol 99"):
            await shim.hello()


async def test_call() -> None:
    async with talking() as (shim, peer), trio.open_nursery() as nursery:

        async def answer() -> None:
            call = await peer.call("script")
            assert call["script"] == "echo"
            await peer.reply(call, status=3, text="x")

        nursery.start_soon(answer)
        reply = await shim.call("script", script="echo")
        assert (reply["status"], reply["text"]) == (3, "x")


async def test_replies_in_another_order() -> None:
    async with talking() as (shim, peer):
        found: dict[str, object] = {}

        async def ask(text: str) -> None:
            found[text] = (await shim.call("script", script=text))["text"]

        async with trio.open_nursery() as nursery:
            for text in "abc":
                nursery.start_soon(ask, text)
            calls = [await peer.call() for _ in "abc"]
            assert len({call["call"] for call in calls}) == 3
            for call in reversed(calls):
                await peer.reply(call, status=0, text=call["script"] * 2)
        assert found == {"a": "aa", "b": "bb", "c": "cc"}


async def test_a_call_that_fails() -> None:
    async with talking() as (shim, peer):

        async def answer() -> None:
            call = await peer.call("create")
            await peer.reply(call, error="no\nsuch\x1b file", log='{"msg":"x"}\n')

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            with pytest.raises(ShimError, match=r"^no; such\\x1b file$") as caught:
                await shim.call("create", id="c")
        assert caught.value.log == '{"msg":"x"}\n'


async def test_a_call_that_is_cancelled_is_forgotten() -> None:
    async with talking() as (shim, peer), trio.open_nursery() as nursery:
        with trio.move_on_after(0.05):
            await shim.call("start", id="c")
        late = await peer.call("start")
        await peer.reply(late, error="too late")

        async def answer() -> None:
            await peer.reply(await peer.call("script"), status=0, text="")

        nursery.start_soon(answer)
        assert (await shim.call("script", script=""))["status"] == 0


async def test_a_call_that_is_too_long() -> None:
    async with talking() as (shim, _):
        with pytest.raises(ShimError, match="more than"):
            await shim.call("create", id="c", config="x" * LONGEST)


async def test_a_call_that_is_no_text() -> None:
    async with talking() as (shim, _):
        with pytest.raises(ShimError, match=r"exec: .* is not UTF-8"):
            await shim.call("exec", id="e", container="c", process={"env": ["A=\udcff"]})
        assert not shim._targets


async def test_a_long_call_and_a_long_reply() -> None:
    text = "x" * (8 << 20)
    async with talking() as (shim, peer), trio.open_nursery() as nursery:

        async def answer() -> None:
            call = await peer.call()
            await peer.reply(call, text=call["script"])

        nursery.start_soon(answer)
        assert (await shim.call("script", script=text))["text"] == text


async def made(shim: object, peer: object, verb: str, **fields: object) -> None:
    async with trio.open_nursery() as nursery:

        async def answer() -> None:
            await peer.reply(await peer.call(verb))  # type: ignore[attr-defined]

        nursery.start_soon(answer)
        await shim.call(verb, **fields)  # type: ignore[attr-defined]


async def test_ended() -> None:
    async with talking() as (shim, peer):
        await made(shim, peer, "create", id="c")
        await made(shim, peer, "exec", id="e", container="c")
        await peer.event(event="ended", target="e", status=256)
        assert await shim.ended("e") == 256
        with trio.move_on_after(0.02) as scope:
            await shim.ended("c")
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shim.ended, "c")
            await peer.event(event="ended", target="c", status=9)
        await made(shim, peer, "delete", id="c")


async def test_a_create_that_is_deleted_meanwhile() -> None:
    async with talking() as (shim, peer):

        async def create() -> None:
            with pytest.raises(ShimError, match="it has been deleted"):
                await shim.call("create", id="c")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create)
            begun = await peer.call("create")
            await made(shim, peer, "delete", id="c")
            await peer.reply(begun, error="it has been deleted")
        assert not shim._container_of


@pytest.mark.parametrize(
    ("reply", "expected"),
    [({"handles": True}, True), ({"handles": False}, False), ({"error": "no"}, False)],
)
async def test_whether_a_signal_is_handled(reply: dict[str, object], *, expected: bool) -> None:
    async with talking() as (shim, peer):
        answers: list[bool] = []

        async def ask() -> None:
            answers.append(await shim.handles("c", 15))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            call = await peer.call("handles")
            assert (call["id"], call["number"]) == ("c", 15)
            await peer.reply(call, **reply)
        assert answers == [expected]


async def test_events_that_nobody_knows_are_ignored() -> None:
    async with talking() as (shim, peer):
        await peer.event(event="ended", target="who", status=0)
        await peer.event(event="sunrise", at=5)
        await peer.control[1].send_all(frame(REPLY, 0, b'{"call": 99}'))
        await made(shim, peer, "create", id="c")
        await peer.event(event="ended", target="c", status=0)
        assert await shim.ended("c") == 0


@pytest.mark.parametrize("direct", [False, True])
async def test_the_end_of_srun(*, direct: bool) -> None:
    async with talking(direct=direct) as (shim, peer):
        await made(shim, peer, "create", id="c")
        await made(shim, peer, "create", id="d")
        await peer.event(event="ended", target="d", status=1)
        assert await shim.ended("d") == 1

        async def lose(what: str, **fields: object) -> None:
            with pytest.raises(ShimLost, match="srun's streams"):
                await (shim.ended("c") if what == "ended" else shim.call(what, **fields))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose, "ended")
            nursery.start_soon(lose, "start")
            await trio.testing.wait_all_tasks_blocked()
            assert not shim.lost.is_set()
            await peer.control[1].aclose()
        assert shim.lost.is_set()
        assert await shim.ended("d") == 1
        await lose("script", script="")
        await lose("ended")


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\0" * 20,
        b"\xff" * 20,
        frame(1, 0, b"{}"),
        frame(REPLY, 0, b"{}"),
        frame(REPLY, 0, b"[1]"),
        frame(REPLY, 0, b"\xff"),
        frame(EVENT, 0, b'{"event": "hello"}'),
        frame(EVENT, 0, b'{"event": "ended", "target": 5}'),
        frame(EVENT, 0, b'{"event": "ended", "target": "c", "status": 127}'),
        frame(REPLY, 0, b'{"call": 1, "error": "\xff"}'),
        frame(REPLY, 0, b'{"call": 1, "x": ' + b"[" * 100_000),
        frame(5, 1, b"x"),
        b"\x04\0\0\0\1\xff\xff\xff\xff",
    ],
)
async def test_nonsense(nonsense: bytes) -> None:
    async with talking() as (shim, peer):
        await peer.control[1].send_all(nonsense)
        with trio.fail_after(5), pytest.raises(ShimLost):
            await shim.call("start", id="c")


async def test_the_shim_that_reads_no_more() -> None:
    async with talking() as (shim, peer):
        await peer.control[0].aclose()
        with trio.fail_after(5), pytest.raises(ShimLost):
            await shim.call("start", id="c")


async def test_leaving_closes_sruns_standard_input() -> None:
    async with talking() as (_, peer):
        pass
    # `talking` has closed ours; the other end was closed before
    del peer
    async with played() as (_, peer):
        readable = os.dup(peer.control[0].fileno())  # type: ignore[attr-defined]
    while part := os.read(readable, 65536):
        assert part
    os.close(readable)


async def test_leaving_early() -> None:
    for _ in range(3):
        async with played():
            pass
        with trio.move_on_after(0.01):
            async with played() as (shim, _):
                await shim.hello()
