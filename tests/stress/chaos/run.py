"""The whole run: containers side by side, then the count of what is left."""

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
from tests.stress.chaos.container import Container
from tests.stress.chaos.faults import PODMAN, Fault
from tests.stress.chaos.outages import Outage
from tests.stress.chaos.plan import GROUP, Plan, draw, draw_in_pod
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


@dataclass
class Run:
    """A run."""

    order: Order
    report: Report
    children: Children = field(default_factory=Children)
    testbeds: dict[str, Testbed] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    made_before: set[str] = field(default_factory=set)
    enough: bool = False

    async def run(self) -> None:
        """Run all containers, and count."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.children.reap)
            try:
                async with trio.open_nursery() as interrupted:
                    interrupted.start_soon(self._obey)
                    await self._run_all()
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

    async def _run_all(self) -> None:
        order = self.order
        for engine in order.engines:
            self.testbeds[engine] = Testbed(engine, order.user, self.children, order.linger)
            if engine == "slurm":
                await self.testbeds[engine].make_gate()
        await self._warm_up()
        if any(self._plan(number).kind in PODMAN for number in self._numbers):
            self.testbeds["podman"] = PodmanTestbed(order.user, self.children)
        self.made_before = set(census.half_made(self.testbeds.values()))
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
            return draw_in_pod(order.seed, number, order.pods, order.faults)
        return draw(order.seed, number, order.engines, order.faults)

    async def _warm_up(self) -> None:
        """Run one on each engine, so that the supervisors are there and have what they keep."""
        for number, engine in enumerate(self.testbeds):
            await self._run_undisturbed(engine, -1 - number)

    async def _run_undisturbed(self, engine: str, number: int) -> None:
        plan = draw(self.order.seed, number, [engine])
        container = Container(plan, self.testbeds[engine])
        problems = judge(plan, await container.run())
        if problems:
            raise RuntimeError(
                f"{engine} does not work: {problems}\n{container.notes}\n{container.log}"
            )

    async def _remove_what_shims_left(self) -> None:
        """Run one more: its shim removes what killed ones have left on their node."""
        for engine, testbed in self.testbeds.items():
            if engine == "slurm" and census.of_shims(testbed):
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
                    nursery.start_soon(self._run, plan, limit)
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
        if plans[0].fault.action == "controller-kill":
            await trio.sleep(_SAVED)
            self.forgotten |= {testbed.job_name(plan) for plan in plans}
        outage = Outage(plans[0].fault.action, testbed, len(plans))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outage.come, 2 * plans[0].pause)
            for plan in plans:
                nursery.start_soon(self._run, plan, None, outage)

    async def _run(
        self, plan: Plan, limit: trio.Semaphore | None, outage: Outage | None = None
    ) -> None:
        container: Container | PodmanContainer
        if plan.kind in PODMAN:
            testbed = self.testbeds["podman"]
            assert isinstance(testbed, PodmanTestbed)
            container = PodmanContainer(plan, testbed)
        else:
            container = Container(plan, self.testbeds[plan.engine], outage)
        try:
            await container.run()
            problems = judge(plan, container.seen)
        except Exception:  # a fault of this program's: the other containers need not go with it
            container.note(traceback.format_exc())
            problems = [Problem(Kind.WORDS, "the program that watches it has failed")]
        finally:
            if limit is not None:
                limit.release()
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
        await self._remove_what_shims_left()
        deadline = time.monotonic() + _SETTLES
        while True:
            left = census.look(testbeds, await self._jobs(), self.forgotten)
            if made := set(census.half_made(testbeds)) - self.made_before:
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
            await trio.to_thread.run_sync(_remove, str(testbed.site.base))


def _remove(base: str) -> None:
    import shutil

    shutil.rmtree(base, ignore_errors=True)


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
