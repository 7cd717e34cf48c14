"""The shim of a job that serves one container after the other; without a node."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
import trio

from scrun.core.errors import EngineError
from scrun.settings.file.load import Log
from scrun.supervisor.core.deposits import Deposit, no_deposit
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.engines.slurm.held_allocation import HeldShim
from scrun.supervisor.engines.slurm.job_shim import JobShim
from scrun.supervisor.log.journal import Journal, Shown


class Made:
    """A shim, or what a container would make one like."""

    def __init__(self, said: list[str], name: str, like: str = "") -> None:
        self.journal: Journal | None = None
        self.deposit: Deposit | None = None
        self.works = True
        self.asked = like
        self._said, self._name = said, name

    @property
    def is_of_use(self) -> bool:
        return self.works

    def takes(self, asked: str) -> bool:
        return self.asked == asked

    def serves_as(self, other: "Made") -> bool:
        return self.works and self.asked == other.asked

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Made"]:
        self.begin()
        try:
            yield self
        finally:
            await self.end()

    def begin(self, nursery: trio.Nursery | None = None) -> None:
        self._said.append(f"begin {self._name}")

    async def end(self) -> None:
        self._said.append(f"end {self._name}")


def journal() -> Journal:
    return Journal("/dev/null", Log(level="quiet"), "", Shown())


async def used(kept: HeldShim, made: Made, *, beside: bool = False) -> Made:
    async with kept.opened(cast(JobShim, made), beside=beside) as got:
        return cast(Made, got)


async def test_one_for_all_that_are_alike() -> None:
    said: list[str] = []
    async with unwrapped() as nursery:
        messages, deposit = journal(), no_deposit()
        kept = HeldShim(nursery, messages, deposit)
        first = await used(kept, Made(said, "1"))
        assert (first.journal, first.deposit) == (messages, deposit)
        assert await used(kept, Made(said, "2")) is first
        assert said == ["begin 1"]
        await kept.close()
    assert said == ["begin 1", "end 1"]


async def test_who_joins_others_ends_no_shim() -> None:
    said: list[str] = []
    async with unwrapped() as nursery:
        kept = HeldShim(nursery, journal(), no_deposit())
        await used(kept, Made(said, "of its own"), beside=True)
        assert said == ["begin of its own", "end of its own"]
        first = await used(kept, Made(said, "1"))
        assert await used(kept, Made(said, "2"), beside=True) is first
        other = Made(said, "3", "limits")
        assert await used(kept, other, beside=True) is other
        assert said[2:] == ["begin 1", "begin 3", "end 3"]


@pytest.mark.parametrize("why", ["another", "lost"])
async def test_the_old_one_ends_before_another_begins(why: str) -> None:
    said: list[str] = []
    async with unwrapped() as nursery:
        kept = HeldShim(nursery, journal(), no_deposit())
        first = await used(kept, Made(said, "1"))
        first.works = why != "lost"
        await used(kept, Made(said, "2", "limits" if why == "another" else ""))
        assert said == ["begin 1", "end 1", "begin 2"]


async def test_none_begins_while_the_job_is_released() -> None:
    said: list[str] = []
    async with unwrapped() as nursery:
        kept = HeldShim(nursery, journal(), no_deposit())
        await kept.close()
        with pytest.raises(EngineError, match="being released"):
            await used(kept, Made(said, "1"))
    assert said == []
