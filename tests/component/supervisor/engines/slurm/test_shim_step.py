"""A step that finds no descriptors left keeps none; and keeps little of what a node says."""

import os
import resource
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from scrun.supervisor.children.pumps import recorded
from scrun.supervisor.engines.slurm.job_state import StepState
from scrun.supervisor.engines.slurm.shim_site import SiteConfs
from scrun.supervisor.engines.slurm.shim_step import ShimStep
from scrun.supervisor.engines.slurm.step import SrunStep
from scrun.supervisor.nodes.code import variables
from tests.harness.processes import descriptors


@contextmanager
def room_for(number: int) -> Iterator[None]:
    """Have room for so many descriptors more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers = [os.open("/dev/null", os.O_RDONLY)]
    try:
        while fillers[-1] < max(map(int, descriptors())):  # no number below it is free
            fillers.append(os.dup(fillers[0]))
        resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 1 + number, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)


def nothing(_: object) -> None:
    """Do nothing."""


async def run_step() -> None:
    async def never(*_: Any) -> None:
        raise AssertionError("there was room")

    step = cast(SrunStep, SimpleNamespace(run=never, on_message=None))
    one = ShimStep(step, cast(Any, None), cast(Any, None), cast(SiteConfs, None))
    await one._run_once([], {})


async def record() -> None:
    def hold(_: Mapping[str, int]) -> None:
        raise AssertionError("there was room")

    async with recorded(nothing, hold):
        pass


@pytest.mark.parametrize("number", range(5))
async def test_a_step_without_descriptors(number: int) -> None:
    variables()  # it is read from files, once
    await trio.to_thread.run_sync(nothing, None)  # a thread has descriptors of its own
    before = descriptors()
    with room_for(number), pytest.raises(OSError, match="Too many open files"):
        await run_step()
    assert descriptors() == before


def test_a_node_that_says_things_without_end() -> None:
    """What says why a second step may do better is at its beginning, and the reason at its end."""
    said: list[str] = []
    journal = SimpleNamespace(write=lambda level, line: said.append(level))
    step = cast(SrunStep, SimpleNamespace(on_message=None, state=StepState()))
    one = ShimStep(step, cast(Any, journal), cast(Any, None), cast(SiteConfs, None))
    for number in range(5000):
        one._take_words(f"{number} " + "x" * 60_000)
    assert sum(map(len, one._words)) < 1 << 20
    assert one._words[0].startswith("0 ")
    assert one.reason.split("; ")[-1].startswith("4999 ")
    assert said == ["error"] * 5000


def test_an_srun_that_has_crashed() -> None:
    step = cast(SrunStep, SimpleNamespace(on_message=None, state=StepState()))
    one = ShimStep(step, cast(Any, None), cast(Any, None), cast(SiteConfs, None))
    one._status = -signal.SIGSEGV
    assert one.reason.startswith("srun was killed by signal 11 (SIGSEGV): it has crashed; ")


@pytest.mark.parametrize("number", range(3))
async def test_messages_without_descriptors(number: int) -> None:
    before = descriptors()
    with room_for(number), pytest.raises(OSError, match="Too many open files"):
        await record()
    assert descriptors() == before
