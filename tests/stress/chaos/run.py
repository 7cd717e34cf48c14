"""The whole run: lives side by side, then the count of what is left."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

import trio

from tests.harness.processes import signal_quietly
from tests.harness.users import User
from tests.stress.chaos import census
from tests.stress.chaos.children import Children
from tests.stress.chaos.faults import PODMAN, Fault
from tests.stress.chaos.life import Life
from tests.stress.chaos.place import Place
from tests.stress.chaos.plan import GROUP, Plan, draw
from tests.stress.chaos.podman_life import PodmanLife, PodmanPlace
from tests.stress.chaos.report import Failure, Report
from tests.stress.chaos.seen import Kind, Problem, judge
from tests.stress.chaos.troubles import Trouble

_SETTLES = 25.0
_GOES = 40.0  # podman's stay for 20
_SAVED = 6.0
"""Seconds until slurmctld has written down what has ended before."""


@dataclass
class Order:
    """What is asked for."""

    seed: int
    lives: int
    at_once: int
    engines: Sequence[str]
    faults: Sequence[Fault]
    user: User
    only: int | None = None


@dataclass
class Run:
    """A run."""

    order: Order
    report: Report
    children: Children = field(default_factory=Children)
    places: dict[str, Place] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    made_before: set[str] = field(default_factory=set)

    async def run(self) -> None:
        """Live all lives, and count."""
        order = self.order
        async with trio.open_nursery() as nursery:
            await nursery.start(self.children.reap)
            try:
                for engine in order.engines:
                    self.places[engine] = Place(engine, order.user, self.children)
                    if engine == "slurm":
                        await self.places[engine].make_gate()
                await self._warm_up()
                if any(self._plan(number).kind in PODMAN for number in self._numbers):
                    self.places["podman"] = PodmanPlace(order.user, self.children)
                self.made_before = set(census.half_made(self.places.values()))
                before = {e: census.descriptors(p) for e, p in self.places.items()}
                self.report.begin()
                await self._all_lives()
                self.report.end()
                await self._count(before)
            finally:
                with trio.CancelScope(shield=True):
                    await self._close()
                self.children.leave()

    @property
    def _numbers(self) -> Sequence[int]:
        return range(self.order.lives) if self.order.only is None else [self.order.only]

    def _plan(self, number: int) -> Plan:
        return draw(self.order.seed, number, self.order.engines, self.order.faults)

    async def _warm_up(self) -> None:
        """One life each, so that the supervisors are there and have what they keep."""
        for number, engine in enumerate(self.places):
            plan = draw(self.order.seed, -1 - number, [engine])
            life = Life(plan, self.places[engine])
            problems = judge(plan, await life.live())
            if problems:
                raise RuntimeError(f"{engine} does not work: {problems}\n{life.notes}\n{life.log}")

    async def _all_lives(self) -> None:
        order = self.order
        limit = trio.Semaphore(order.at_once)
        async with trio.open_nursery() as nursery:
            for number in self._numbers:
                plan = self._plan(number)
                if not plan.fault.trouble:
                    await limit.acquire()
                    nursery.start_soon(self._live, plan, limit)
                elif number % GROUP == 0 or order.only is not None:
                    for _ in range(order.at_once):  # nobody else is disturbed
                        await limit.acquire()
                    await self._live_in_trouble(number // GROUP * GROUP)
                    for _ in range(order.at_once):
                        limit.release()

    async def _live_in_trouble(self, first: int) -> None:
        """Have a group of lives wait for a trouble, each at its own moment."""
        order = self.order
        numbers = range(first, min(first + GROUP, order.lives))
        plans = [self._plan(number) for number in numbers]
        place = self.places[plans[0].engine]
        if plans[0].fault.deed == "controller-kill":
            await trio.sleep(_SAVED)
            self.forgotten |= {place.tag(plan) for plan in plans}
        trouble = Trouble(plans[0].fault.deed, place, len(plans))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trouble.come, 2 * plans[0].pause)
            for plan in plans:
                nursery.start_soon(self._live, plan, None, trouble)

    async def _live(
        self, plan: Plan, limit: trio.Semaphore | None, trouble: Trouble | None = None
    ) -> None:
        life: Life | PodmanLife
        if plan.kind in PODMAN:
            place = self.places["podman"]
            assert isinstance(place, PodmanPlace)
            life = PodmanLife(plan, place)
        else:
            life = Life(plan, self.places[plan.engine], trouble)
        try:
            await life.live()
            problems = judge(plan, life.seen)
        except Exception:  # a fault of this program's: the other lives need not go with it
            life.note(traceback.format_exc())
            problems = [Problem(Kind.WORDS, "the program that watches it has failed")]
        finally:
            if limit is not None:
                limit.release()
        self.report.add(plan, life.seen)
        lost = {problem.kind for problem in problems} <= {Kind.STATUS, Kind.LINES}
        number = ""
        if problems and lost and plan.engine == "slurm":
            number = census.given_twice(os.environ["SLURM_CONF"], life.log)
        if number:
            self.report.left({census.GIVEN_TWICE: [f"{plan}: job {number}"]})
            problems = []
        elif problems and lost and census.not_made(life.notes, life.log):
            self.report.left({census.NOT_MADE: [str(plan)]})
            problems = []
        if self.order.only is not None:
            self.report.keep(Failure(plan, problems, life.notes, life.log))
        if problems:
            self.report.fail(Failure(plan, problems, life.notes, life.log))

    # What is left

    async def _count(self, before: dict[str, dict[int, list[str]]]) -> None:
        """Wait until nothing is left, or for as long as that may take."""
        places = list(self.places.values())
        deadline = time.monotonic() + _SETTLES
        while True:
            left = census.look(places, await self._jobs(), self.forgotten)
            if made := set(census.half_made(places)) - self.made_before:
                left[census.HALF_MADE] = sorted(made)
            if not left.keys() - census.NOT_OURS:
                break
            if time.monotonic() > deadline:
                break
            await trio.sleep(0.3)
        self.report.left(left)
        deadline = time.monotonic() + _SETTLES
        # a child that looks for leftovers has some, too: a leak is what stays
        while (more := self._more_descriptors(before)) and time.monotonic() < deadline:
            await trio.sleep(0.3)
        if more:
            self.report.left({"descriptors": more})
        await self._supervisors_go()

    def _more_descriptors(self, before: dict[str, dict[int, list[str]]]) -> list[str]:
        """Say which supervisors have more open than before."""
        found = []
        for engine, place in self.places.items():
            after = census.descriptors(place)
            for pid, links in before.get(engine, {}).items():
                if pid in after and len(after[pid]) > len(links):
                    more = sorted(set(after[pid]) - set(links)) or after[pid]
                    found.append(f"supervisor {pid}: {more}")
        return found

    async def _supervisors_go(self) -> None:
        """Supervisors without containers go by themselves, and leave nothing."""
        deadline = time.monotonic() + _GOES
        while left := [pid for place in self.places.values() for pid in place.site.supervisors()]:
            if time.monotonic() > deadline:
                self.report.left({"supervisors": [str(pid) for pid in left]})
                return
            await trio.sleep(0.3)
        for place in self.places.values():
            if remains := census.remains(place):
                self.report.left({"root directory": remains})

    async def _jobs(self) -> list[str]:
        if "slurm" not in self.places:
            return []
        place = self.places["slurm"]
        user = self.order.user.name
        command = ["squeue", "-h", "-u", user, "-o", "%i %T %j"]
        done = await self.children.run(command, place.slurm_environment)
        if done.status:
            return [f"squeue ended with {done.status}: {done.err} {place.site.base.name}"]
        return done.out.splitlines()

    async def _close(self) -> None:
        """End what is left, so that the next run begins with nothing."""
        for place in self.places.values():
            place.close()
            await place.remove_gate()
            for process in place.site.processes():
                signal_quietly(process.pid, signal.SIGTERM if process.is_supervisor else 9)
        await trio.sleep(0.5)
        for job in await self._jobs() if self.places else []:
            place = self.places["slurm"]
            if place.site.base.name in job:
                words = ["scancel", job.split()[0]]
                await self.children.run(words, place.slurm_environment)
        for place in self.places.values():
            for process in place.site.processes():
                signal_quietly(process.pid)
            await trio.to_thread.run_sync(_remove, str(place.site.base))


def _remove(base: str) -> None:
    import shutil

    shutil.rmtree(base, ignore_errors=True)


def go(order: Order, details: TextIO) -> Report:
    """Run, and return the report.

    Args:
        order: What is asked for.
        details: Gets all that is known of each life that was not right.
    """
    os.chdir("/")
    report = Report(order.seed, order.lives, order.at_once, sys.stderr, details)
    run = Run(order, report)
    trio.run(run.run)
    return report
