"""The whole run: containers side by side, then the count of what is left."""

import itertools
import os
import signal
import sys
import time
import traceback
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TextIO

import msgspec
import trio

from tests.harness.processes import signal_quietly
from tests.harness.users import User
from tests.stress.chaos import census
from tests.stress.chaos.children import Children
from tests.stress.chaos.container import Container
from tests.stress.chaos.faults import ANCHORED, PODMAN, Fault
from tests.stress.chaos.files import file_systems
from tests.stress.chaos.inside import AGENT, Place, Places
from tests.stress.chaos.jobs import is_alone
from tests.stress.chaos.outages import Outage
from tests.stress.chaos.plan import GROUP, Plan, draw, draw_in_pod, draw_inside
from tests.stress.chaos.podman_container import PodmanContainer, PodmanTestbed
from tests.stress.chaos.report import Failure, Report
from tests.stress.chaos.seen import Kind, Problem, judge
from tests.stress.chaos.testbed import Testbed

_SETTLES = 25.0
_GOES = 40.0  # podman's stay for 20
_SAVED = 6.0
"""Seconds until slurmctld has written down what has ended before."""


@dataclass
class Order:
    """What is asked for."""

    seed: int
    containers: int
    at_once: int
    engines: Sequence[str]
    faults: Sequence[Fault]
    user: User
    only: int | None = None
    linger: float = 0
    pods: int = 0
    inside: Sequence[str] = ()
    forwards: bool = False
    networks: bool = False
    pool: bool = False
    files: bool = False


@dataclass
class Run:
    """A run."""

    order: Order
    report: Report
    children: Children = field(default_factory=Children)
    testbeds: dict[str, Testbed] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    made_before: set[str] = field(default_factory=set)
    mounted_before: set[str] = field(default_factory=set)
    enough: bool = False
    places: Places | None = None

    async def run(self) -> None:
        """Run all containers, and count."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.children.reap)
            try:
                async with trio.open_nursery() as interrupted:
                    interrupted.start_soon(self._obey)
                    await self._run_all(interrupted)
                    interrupted.cancel_scope.cancel()
            finally:
                with trio.CancelScope(shield=True):
                    await self._close()
                self.children.leave()

    async def _obey(self) -> None:
        """Begin no more containers after a first interrupt, and end at once after a second one."""
        with trio.open_signal_receiver(signal.SIGINT) as interrupts:
            async for _ in interrupts:
                if self.enough:
                    raise KeyboardInterrupt
                self.enough = True
                self.report.say("no more containers begin; interrupt once more to end at once")

    async def _run_all(self, nursery: trio.Nursery) -> None:
        order = self.order
        for engine in order.engines:
            self.testbeds[engine] = Testbed(
                engine, order.user, self.children, order.linger,
                in_memory=not order.inside, in_pool=order.pool, shows_files=order.files,
            )  # fmt: skip
            if engine == "slurm":
                await self.testbeds[engine].make_gate()
        if order.inside:
            self.places = Places(next(iter(self.testbeds.values())))
            await nursery.start(self.places.serve)
        await self._warm_up()
        if any(self._plan(number).kind in PODMAN for number in self._numbers):
            self.testbeds["podman"] = PodmanTestbed(order.user, self.children)
        self.made_before = set(census.half_made(self.testbeds.values()))
        self.mounted_before = self._file_systems()
        before = {e: census.descriptors(p) for e, p in self.testbeds.items()}
        self.report.begin()
        await self._all_containers()
        self.report.end()
        for testbed in self.testbeds.values():
            testbed.unmount()
        await self._count(before)

    @property
    def _numbers(self) -> Sequence[int]:
        return range(self.order.containers) if self.order.only is None else [self.order.only]

    def _plan(self, number: int) -> Plan:
        order = self.order
        if order.pods:
            plan = draw_in_pod(order.seed, number, order.pods, order.faults)
        elif order.inside:
            plan = draw_inside(order.seed, number, order.engines, order.faults, order.inside)
        else:
            plan = draw(order.seed, number, order.engines, order.faults)
        forwards = order.forwards and plan.kind not in PODMAN
        others = plan.kind not in (*PODMAN, *ANCHORED)
        files = order.files and others and not (plan.fault.before or plan.fault.disk == "store")
        return msgspec.structs.replace(
            plan, forwards=forwards, network=order.networks and others, files=files
        )

    async def _warm_up(self) -> None:
        """Run one on each engine, so that the supervisors are there and have what they keep."""
        numbers = itertools.count(-1, -1)
        for engine in self.testbeds:
            for place in self.order.inside or [""]:
                await self._run_undisturbed(engine, next(numbers), place)

    async def _run_undisturbed(self, engine: str, number: int, inside: str = "") -> None:
        plan = draw(self.order.seed, number, [engine])
        if inside:
            plan = msgspec.structs.replace(plan, inside=inside, waits=False)
        async with self._place(plan) as place:
            container = Container(plan, self.testbeds[engine], place=place)
            problems = judge(plan, await container.run())
        if problems:
            raise RuntimeError(
                f"{engine} does not work: {problems}\n{container.notes}\n{container.log}"
            )

    @asynccontextmanager
    async def _place(self, plan: Plan) -> AsyncIterator[Place | None]:
        """Have the place from which the commands of a container are called."""
        if self.places is None or not plan.inside:
            yield None
            return
        place = await self.places.take(plan.inside, alone=is_alone(plan.fault))
        try:
            yield place
        finally:
            self.places.give_back(place)

    async def _remove_what_dead_ones_left(self) -> None:
        """Run one more: its shim, and its supervisor when that goes, remove what killed ones left.

        A supervisor of one container, killed with all else of it, has no successor.
        """
        for engine, testbed in self.testbeds.items():
            shims = engine == "slurm" and census.of_shims(testbed)
            if shims or census.dead_supervisors(testbed):
                await self._run_undisturbed(engine, -10)

    async def _all_containers(self) -> None:
        order = self.order
        limit = trio.Semaphore(order.at_once)
        async with trio.open_nursery() as nursery:
            for number in self._numbers:
                if self.enough:
                    break
                plan = self._plan(number)
                if not plan.fault.outage:
                    await limit.acquire()
                    nursery.start_soon(self._run_limited, plan, limit)
                elif number % GROUP == 0 or order.only is not None:
                    for _ in range(order.at_once):  # nobody else is disturbed
                        await limit.acquire()
                    await self._run_in_outage(number // GROUP * GROUP)
                    for _ in range(order.at_once):
                        limit.release()

    async def _run_in_outage(self, first: int) -> None:
        """Have a group of containers wait for an outage, each at its own moment."""
        order = self.order
        numbers = range(first, min(first + GROUP, order.containers))
        plans = [self._plan(number) for number in numbers]
        testbed = self.testbeds[plans[0].engine]
        async with AsyncExitStack() as stack:
            places = [await stack.enter_async_context(self._place(plan)) for plan in plans]
            if plans[0].fault.action == "controller-kill":
                await trio.sleep(_SAVED)
                self.forgotten |= {testbed.job_name(plan) for plan in plans}
            outage = Outage(plans[0].fault.action, testbed, len(plans))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(outage.come, 2 * plans[0].pause)
                for plan, place in zip(plans, places, strict=True):
                    nursery.start_soon(self._run, plan, place, outage)

    async def _run_limited(self, plan: Plan, limit: trio.Semaphore) -> None:
        try:
            async with self._place(plan) as place:
                await self._run(plan, place)
        finally:
            limit.release()

    async def _run(self, plan: Plan, place: Place | None, outage: Outage | None = None) -> None:
        container: Container | PodmanContainer
        if plan.kind in PODMAN:
            testbed = self.testbeds["podman"]
            assert isinstance(testbed, PodmanTestbed)
            container = PodmanContainer(plan, testbed)
        else:
            container = Container(plan, self.testbeds[plan.engine], outage, place)
        try:
            await container.run()
            problems = judge(plan, container.seen)
        except Exception as error:  # a fault of this program: the other containers go on
            container.note(traceback.format_exc())
            problems = [Problem(Kind.WORDS, f"chaos itself failed: {error!r}")]
        self.report.add(plan, container.seen)
        lost = {problem.kind for problem in problems} <= {Kind.STATUS, Kind.LINES}
        number = ""
        if problems and lost and plan.engine == "slurm":
            number = census.given_twice(os.environ["SLURM_CONF"], container.log)
        if number:
            self.report.left({census.GIVEN_TWICE: [f"{plan}: job {number}"]})
            problems = []
        elif problems and lost and census.not_made(container.notes, container.log):
            self.report.left({census.NOT_MADE: [str(plan)]})
            problems = []
        if self.order.only is not None:
            self.report.keep(Failure(plan, problems, container.notes, container.log))
        if problems:
            self.report.fail(Failure(plan, problems, container.notes, container.log))

    # What is left

    async def _count(self, before: dict[str, dict[int, list[str]]]) -> None:
        """Wait until nothing is left, or for as long as that may take."""
        testbeds = list(self.testbeds.values())
        await self._remove_what_dead_ones_left()
        await self._count_things(testbeds)
        deadline = time.monotonic() + _SETTLES
        # a child that looks for leftovers has some, too: a leak is what stays
        while (more := self._more_descriptors(before)) and time.monotonic() < deadline:
            await trio.sleep(0.3)
        if more:
            self.report.left({"descriptors": more})
        await self._supervisors_go()
        if self.places is not None:
            if jobs := await self.places.close():
                self.report.left({"jobs in which containers were": jobs})
            self.places = None
            await self._count_things(testbeds)

    async def _count_things(self, testbeds: list[Testbed]) -> None:
        deadline = time.monotonic() + _SETTLES
        agents = "" if self.places is None else AGENT
        while True:
            left = census.look(testbeds, await self._jobs(), self.forgotten, agents)
            if made := set(census.half_made(testbeds)) - self.made_before:
                left[census.HALF_MADE] = sorted(made)
            if more := self._file_systems() - self.mounted_before:
                left["file systems by FUSE"] = sorted(more)
            if not left.keys() - census.NOT_OURS or time.monotonic() > deadline:
                break
            await trio.sleep(0.3)
        self.report.left(left)

    def _file_systems(self) -> set[str]:
        if not self.order.files:
            return set()
        return file_systems(self.testbeds["slurm"].site.base.name)

    def _more_descriptors(self, before: dict[str, dict[int, list[str]]]) -> list[str]:
        """Say which supervisors have more open than before."""
        found = []
        for engine, testbed in self.testbeds.items():
            after = census.descriptors(testbed)
            for pid, links in before.get(engine, {}).items():
                if pid in after and len(after[pid]) > len(links):
                    more = sorted(set(after[pid]) - set(links)) or after[pid]
                    found.append(f"supervisor {pid}: {more}")
        return found

    async def _supervisors_go(self) -> None:
        """Supervisors without containers go by themselves, and leave nothing."""
        deadline = time.monotonic() + _GOES
        while left := [
            pid for testbed in self.testbeds.values() for pid in testbed.site.supervisors()
        ]:
            if time.monotonic() > deadline:
                self.report.left({"supervisors": [str(pid) for pid in left]})
                return
            await trio.sleep(0.3)
        for testbed in self.testbeds.values():
            if remains := census.remains(testbed):
                self.report.left({"root directory": remains})
            if blocked := testbed.site.blocked_loops():
                self.report.left({"event loops that were blocked": blocked})

    async def _jobs(self) -> list[str]:
        if "slurm" not in self.testbeds:
            return []
        testbed = self.testbeds["slurm"]
        user = self.order.user.name
        command = ["squeue", "-h", "-u", user, "-o", "%i %T %j"]
        done = await self.children.run(command, testbed.slurm_environment)
        if done.status:
            return [f"squeue ended with {done.status}: {done.err} {testbed.site.base.name}"]
        return done.out.splitlines()

    async def _close(self) -> None:
        """End what is left, so that the next run begins with nothing."""
        if self.places is not None:
            await self.places.close()
        for testbed in self.testbeds.values():
            testbed.close()
            await testbed.remove_gate()
            for process in testbed.site.processes():
                signal_quietly(process.pid, signal.SIGINT if process.is_supervisor else 9)
        await trio.sleep(0.5)
        for job in await self._jobs() if self.testbeds else []:
            testbed = self.testbeds["slurm"]
            if testbed.site.base.name in job:
                words = ["scancel", job.split()[0]]
                await self.children.run(words, testbed.slurm_environment)
        for testbed in self.testbeds.values():
            for process in testbed.site.processes():
                signal_quietly(process.pid)
            await trio.to_thread.run_sync(testbed.remove)


def go(order: Order, details: TextIO) -> Report:
    """Run, and return the report.

    Args:
        order: What is asked for.
        details: Gets all that is known of each container that was not right.
    """
    os.chdir("/")
    report = Report(order.seed, order.containers, order.at_once, sys.stderr, details)
    run = Run(order, report)
    trio.run(run.run)
    return report
