"""The shim of a job that serves one container after the other; without a node."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
import trio

from scrun.core.errors import EngineError
from scrun.settings.file.load import Log
from scrun.supervisor.core.deposits import Deposit, PassedOn
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.engines.slurm.job_shim import JobShim
from scrun.supervisor.engines.slurm.warm_shim import WarmShim
from scrun.supervisor.log.journal import Journal, Shown


class Made:
    """A shim, or what a container would make one like."""

    def __init__(self, said: list[str], name: str, like: str = "") -> None:
        self.journal: Journal | None = None
        self.deposit: Deposit | None = None
        self.is_kept = False
        self.works = True
        self._said, self._name, self._like = said, name, like

    @property
    def is_of_use(self) -> bool:
        return self.works

    def serves_as(self, other: "Made") -> bool:
        return self.works and self._like == other._like

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Made"]:
        self._said.append(f"begin {self._name}")
        try:
            yield self
        finally:
            self._said.append(f"end {self._name}")


def journal() -> Journal:
    return Journal("/dev/null", Log(level="quiet"), "", Shown())


async def used(kept: WarmShim, made: Made) -> Made:
    async with kept.opened(cast(JobShim, made)) as got:
        return cast(Made, got)


async def test_one_for_all_that_are_alike() -> None:
    said: list[str] = []
    async with unwrapped() as nursery:
        messages, deposit = journal(), PassedOn()
        kept = WarmShim(nursery, messages, deposit)
        first = await used(kept, Made(said, "1"))
        assert (first.is_kept, first.journal, first.deposit) == (True, messages, deposit)
        assert await used(kept, Made(said, "2")) is first
        assert said == ["begin 1"]
        nursery.cancel_scope.cancel()
    assert said == ["begin 1", "end 1"]


@pytest.mark.parametrize("why", ["another", "lost"])
async def test_the_old_one_ends_before_another_begins(why: str) -> None:
    said: list[str] = []
    async with unwrapped() as nursery:
        kept = WarmShim(nursery, journal(), PassedOn())
        first = await used(kept, Made(said, "1"))
        first.works = why != "lost"
        await used(kept, Made(said, "2", "limits" if why == "another" else ""))
        assert said == ["begin 1", "end 1", "begin 2"]
        nursery.cancel_scope.cancel()


async def test_none_begins_while_the_job_is_released() -> None:
    said: list[str] = []
    async with unwrapped() as nursery:
        kept = WarmShim(nursery, journal(), PassedOn())
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True), pytest.raises(EngineError, match="being released"):
            await used(kept, Made(said, "1"))
    assert said in ([], ["begin 1", "end 1"])
