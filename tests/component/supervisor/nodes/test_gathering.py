"""The shims of several tasks: who is taken, and how each ends."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from scrun.supervisor.nodes.beginning import Direct, Gathering, gathered
from scrun.supervisor.nodes.code import code
from scrun.supervisor.nodes.dialing import NotReached
from scrun.supervisor.wire.frames import CALL, EVENT
from tests.harness.frames import WholeFrames
from tests.harness.peer import HELLO, Said, Wire, prove, soon

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")


class Called:
    """What a task gets from srun: the call that is for all."""

    def __init__(self, gathering: Gathering, from_srun: int) -> None:
        self.gathering = gathering
        self.call: dict[str, Any] = {}
        self.from_srun = from_srun

    async def read(self) -> None:
        [(kind, stream, payload)] = WholeFrames().feed(os.read(self.from_srun, 4096))
        assert (kind, stream) == (CALL, 0)
        self.call = json.loads(payload)
        assert self.call["verb"] == "begin"
        assert self.call["needed"]
        assert self.call["alone"] == 0

    async def come(self, rank: int, secret: str = "") -> trio.SocketStream:
        """Be the shim of a task."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.call["port"])
        known = bytes.fromhex(secret or self.call["secret"])
        if both := await prove(stream, known):
            wire = Wire(stream, known, both)
            assert await wire.ask() == code("")
            await wire.send(EVENT, json.dumps({**HELLO, "rank": rank}).encode())
        return stream

    @property
    def is_over(self) -> bool:
        """Whether standard input has ended."""
        os.set_blocking(self.from_srun, False)
        try:
            return not os.read(self.from_srun, 1)
        except BlockingIOError:
            return False


@asynccontextmanager
async def called(
    count: int, said: Said | None = None, ports: str | None = None
) -> AsyncIterator[Called]:
    stdin, to_srun = os.pipe()
    from_srun, stdout = os.pipe()
    os.write(stdout, b"what a script of the site's writes\n\0\xff")
    try:
        async with gathered(
            to_srun, from_srun, count, Direct(True, ports), (said or Said()).journal
        ) as gathering:
            whole = Called(gathering, stdin)
            await trio.testing.wait_all_tasks_blocked()
            await whole.read()
            yield whole
        assert whole.is_over
    finally:
        os.close(stdin)
        os.close(stdout)


async def ended(stream: trio.SocketStream) -> bool:
    """Whether the supervisor has closed a connection."""
    with trio.fail_after(5):
        try:
            return not await stream.receive_some(1)
        except trio.BrokenResourceError:
            return True


async def test_all_come_in_any_order() -> None:
    async with called(3) as whole:
        streams = [await whole.come(2), await whole.come(0)]
        await trio.testing.wait_all_tasks_blocked()
        assert not whole.gathering.complete.is_set()
        streams.append(await whole.come(1))
        await whole.gathering.complete.wait()
        assert [rank.number for rank in whole.gathering.ranks] == [0, 1, 2]
        assert {rank.node for rank in whole.gathering.ranks} == {"node1"}
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(OSError, match="connect"):  # nobody listens any more
            await whole.come(1)
        whole.gathering.ranks[1].dismiss()
        assert await ended(streams[2])
        assert not whole.gathering.ranks[0].shim.lost.is_set()
        assert not whole.is_over
    for stream in streams:
        assert await ended(stream)
        await stream.aclose()


@pytest.mark.parametrize("rank", [-1, 2, 0])
async def test_who_is_not_expected(rank: int) -> None:
    said = Said()
    async with called(2, said) as whole:
        first = await whole.come(0)
        other = await whole.come(rank)
        assert await ended(other)
        assert f"not expected: {rank}" in said
        second = await whole.come(1)
        await whole.gathering.complete.wait()
    for stream in (first, other, second):
        await stream.aclose()


async def test_who_does_not_know_the_secret() -> None:
    async with called(1) as whole:
        wrong = await whole.come(0, secret="00" * 32)
        assert await ended(wrong)
        assert whole.gathering.ranks == []
        right = await whole.come(0)
        await whole.gathering.complete.wait()
    for stream in (wrong, right):
        await stream.aclose()


async def test_one_that_goes() -> None:
    async with called(2) as whole:
        streams = [await whole.come(0), await whole.come(1)]
        await whole.gathering.complete.wait()
        await streams[0].aclose()
        first, second = whole.gathering.ranks
        with trio.fail_after(5):
            await first.shim.lost.wait()
        assert not second.shim.lost.is_set()
        await streams[1].aclose()


async def test_an_end_before_all_are_there() -> None:
    """Who is late still finds somebody, and then the end of its input."""
    async with called(2) as whole:
        whole.gathering.end()
        assert whole.is_over
        late = await whole.come(1)
        await soon(lambda: whole.gathering.ranks)
        await late.aclose()


async def test_no_port() -> None:
    with pytest.raises(NotReached, match="SrunPortRange=x is not a range"):
        async with called(1, ports="x"):
            await trio.sleep_forever()
