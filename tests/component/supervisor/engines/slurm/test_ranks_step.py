"""The step of several tasks, with an srun that a test plays."""

import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio

from scrun.core.errors import EngineError
from scrun.settings.file.load import RuntimeSettings
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.engines.slurm import shim_step
from scrun.supervisor.engines.slurm.job_state import StepState
from scrun.supervisor.engines.slurm.shim_site import HAS_OCI_CONF, SiteConfs
from scrun.supervisor.engines.slurm.shim_step import RanksStep
from scrun.supervisor.engines.slurm.step import SrunStep, StepStreams
from scrun.supervisor.nodes.beginning import Direct
from scrun.supervisor.nodes.connection import ShimLost
from scrun.supervisor.wire.frames import CALL, EVENT, REPLY, UNREACHED
from tests.harness.frames import WholeFrames
from tests.harness.peer import HELLO, Said, Wire, prove, soon

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")


class Srun:
    """A run of srun whose tasks are what the test makes of them."""

    def __init__(self, tasks: int) -> None:
        self.state = StepState(tasks)
        self.on_message: Callable[[], None] = lambda: None
        self.over = trio.Event()
        self.call: dict[str, Any] = {}
        self.called = trio.Event()
        self.runs = 0
        self._error = -1

    async def run(
        self,
        options: Sequence[str],
        program: Sequence[str],
        streams: StepStreams,
        running: Callable[[], None],
        variables: Mapping[str, str],
        deposit: Deposit,
    ) -> int:
        """Give the call to the tasks, and end with the input or when the test says so."""
        del options, program, running, variables, deposit
        self.runs += 1
        stdin, _, self._error = streams.fds
        os.set_blocking(stdin, False)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def read() -> None:
                while True:
                    await trio.lowlevel.wait_readable(stdin)
                    if not (data := os.read(stdin, 4096)):
                        break
                    [(_, _, payload)] = WholeFrames().feed(data)
                    self.call = json.loads(payload)
                    self.called.set()
                self.over.set()

            await self.over.wait()
            nursery.cancel_scope.cancel()
        return 0

    def renew(self) -> None:
        self.over, self.state = trio.Event(), StepState(2)

    def says(self, text: str) -> None:
        """Write to the standard error of the tasks."""
        os.write(self._error, f"{text}\n".encode())

    def hears(self, line: str) -> None:
        """Take a message of srun's."""
        self.state.feed(line)
        self.on_message()

    async def come(self, rank: int, **other: object) -> Wire:
        """Be the shim of a task."""
        await self.called.wait()
        stream = await trio.open_tcp_stream("127.0.0.1", self.call["port"])
        secret = bytes.fromhex(self.call["secret"])
        wire = Wire(stream, secret, await prove(stream, secret))
        environment = {"SLURMD_NODENAME": f"node{rank + 1}"}
        hello = {**HELLO, "rank": rank, "environment": environment, **other}
        await wire.ask()
        await wire.send(EVENT, json.dumps(hello).encode())
        return wire


EXIT = "srun: launch/slurm: _task_finish: Received task exit notification for 1 task of "
EXIT += "StepId=1.0 (status=0x7f00)."


@asynccontextmanager
async def running(*, allowed: bool = True) -> AsyncIterator[tuple[RanksStep, Srun]]:
    srun = Srun(2)
    confs = SiteConfs(None, None, RuntimeSettings())
    step = RanksStep(
        cast("SrunStep", srun), Said().journal, lambda: Direct(allowed, None), confs, 2
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(step.run, [], {})
        yield step, srun
        await step.leave()


async def test_all_are_there_and_end_with_their_containers() -> None:
    async with running() as (step, srun):
        streams = [await srun.come(rank) for rank in (1, 0)]
        ranks = await step.ranks()
        assert [rank.node for rank in ranks] == ["node1", "node2"]
        assert step.what == "launched by 2 shims on node1, node2, with /usr/bin/crun"
        for rank in ranks:
            rank.dismiss()
        for stream in streams:
            assert await stream.stream.receive_some(1) == b""
            await stream.stream.aclose()
        srun.over.set()
        await step.leave()
        assert step.ended_well
        assert not step.is_unreached
        assert not step.is_lacking


async def test_one_that_is_not_dismissed_has_not_ended_well() -> None:
    async with running() as (step, srun):
        streams = [await srun.come(rank) for rank in (0, 1)]
        (await step.ranks())[0].dismiss()
        srun.over.set()
        await soon(lambda: step.is_over)
        assert not step.ended_well
        for stream in streams:
            await stream.stream.aclose()


async def test_one_ends_before_all_are_there() -> None:
    """The other one, which is late, does not count as one that cannot connect."""
    async with running() as (step, srun):
        await srun.called.wait()
        srun.says("there is no Python on this node")
        srun.hears(EXIT)
        assert srun.state.missing == 1
        with pytest.raises(EngineError, match=r"could not be started: there is no Python on this"):
            await step.ranks()
        assert not step.is_unreached
        assert step.is_lacking


async def test_one_is_killed_before_all_are_there() -> None:
    """That says nothing about what its node lacks."""
    async with running() as (step, srun):
        await srun.called.wait()
        srun.hears(EXIT.replace("0x7f00", "0x9"))
        with pytest.raises(EngineError, match="could not be started"):
            await step.ranks()
        assert not step.is_lacking


@pytest.mark.parametrize("unseen", [False, True], ids=["no-oci.conf", "oci.conf-of-root"])
async def test_one_without_a_runtime(unseen: bool) -> None:
    """srun --container needs none of ours, but an oci.conf, which users need not see."""
    async with running() as (step, srun):
        streams = [await srun.come(0), await srun.come(1, runtime="")]
        kind, _, payload = await streams[1].frame()
        call = json.loads(payload)
        assert (kind, call["verb"], call["script"]) == (CALL, "script", HAS_OCI_CONF)
        reply = {"call": call["call"], "status": 0, "text": ".\n" if unseen else "none\n.\n"}
        await streams[1].send(REPLY, json.dumps(reply).encode())
        with pytest.raises(EngineError, match="node2: no OCI runtime"):
            await step.ranks()
        assert step.is_lacking is unseen
        for stream in streams:
            await stream.stream.aclose()


async def test_one_cannot_connect() -> None:
    async with running() as (step, srun):
        await srun.called.wait()
        srun.says(f"{UNREACHED}: 10.0.0.1:5: No route to host")
        srun.hears(EXIT)
        with pytest.raises(EngineError, match=f"{UNREACHED}: .* No route"):
            await step.ranks()
        assert step.is_unreached


async def test_where_slurm_encrypts_its_connections() -> None:
    async with running(allowed=False) as (step, _):
        with pytest.raises(EngineError, match=f"{UNREACHED}: Slurm encrypts its connections"):
            await step.ranks()
        assert step.is_unreached


async def test_a_listener_that_fails_while_a_shim_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are known, and no internal error of the container's."""

    @asynccontextmanager
    async def failing(to_srun: int, from_srun: int, *_: object) -> AsyncIterator[None]:
        os.close(to_srun)
        os.close(from_srun)
        lost = ShimLost("it broke a frame")
        raise ExceptionGroup("", [lost, OSError(24, "Too many open files")])
        yield

    monkeypatch.setattr(shim_step, "gathered", failing)
    said, ended = Said(), trio.Event()
    confs = SiteConfs(None, None, RuntimeSettings())
    step = RanksStep(cast("SrunStep", Srun(2)), said.journal, lambda: Direct(True, None), confs, 2)
    step._how = Direct(True, None)
    ended.set()
    await step._connect(*os.pipe(), ended)
    assert step._words == [f"{UNREACHED}: [Errno 24] Too many open files"]
