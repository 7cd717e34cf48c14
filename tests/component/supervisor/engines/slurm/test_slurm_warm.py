"""Who gets a waiting job, and when it is released; on a mocked clock and without salloc."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing

from scrun.core.errors import AllocationRefused, EngineError
from scrun.model.states import Ending, exited, taken
from scrun.oci.config import Config, Process, Root
from scrun.settings.file.load import Log, Settings
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.containers.pods import Pods
from scrun.supervisor.containers.pools import Pools
from scrun.supervisor.contracts.engine import Engine, Job, JobPlan, JobRequest
from scrun.supervisor.contracts.reuse import CLEAN, LOAN, Borrow, HeldAllocation
from scrun.supervisor.core.deposits import Deposits
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.engines.slurm import held_allocation
from scrun.supervisor.engines.slurm.allocation import Allocation
from scrun.supervisor.engines.slurm.held_allocation import (
    LeaseRequest,
    Needs,
    SlurmAllocation,
    borrowed_job,
    held,
)
from scrun.supervisor.engines.slurm.job_state import JobState
from scrun.supervisor.engines.slurm.tools import Tools
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.plugins.choose import WholeJob

TOOLS = Tools("salloc", ("srun",), "scancel", None, (), "/bin/squeue")
PLAIN, LARGE, HOUR = Needs(("-N1",)), Needs(("-N2",)), Needs(("--time=60",), seconds=3600.0)
LINGER = 10.0
CONFIG = Config("1.0.2", Process(args=["true"], cwd="/"), Root("rootfs"))
Clock = trio.testing.MockClock


async def nobody_lends(_: bytes) -> Inheritance | None:
    return None


async def nobody_arrives(_: Config) -> None:
    pass


class Cluster:
    """Gives out jobs 1, 2, …, to containers a, b, …"""

    def __init__(self, nursery: trio.Nursery, directory: Path) -> None:
        deposits = Deposits()
        pools = Pools(str(directory), nursery, deposits, lambda: None)
        self.jobs = Pods(
            nursery, deposits, nobody_arrives, self.borrow, lambda: None, pools, lingers=True
        )
        self.count = 0
        self.borrow_from: Borrow = nobody_lends
        self.wants: dict[str, Container] = {}
        self.asked: list[JobRequest] = []
        self.again_asked: list[Inheritance] = []
        self.held: dict[str, JobState] = {}
        self.endings: list[Ending | None] = []
        self.limit = "2:00:00"
        self.refuses: Exception | None = None
        self.not_given_back: Exception | None = None
        self.nursery = nursery
        self.directory = directory

    shares_jobs = True

    async def borrow(self, needs: bytes) -> Inheritance | None:
        return await self.borrow_from(needs)

    async def plan(self, request: JobRequest) -> JobPlan:
        needs = self.wants[request.container].needs
        await trio.lowlevel.checkpoint()
        lease = None if needs is None else LeaseRequest(TOOLS, needs)
        asked = b"" if lease is None else msgspec.json.encode(lease)
        return JobPlan(partial(self.hold, lease), self.job, asked, LINGER)

    def held_again(self) -> None:
        raise AssertionError("nothing is left")

    @asynccontextmanager
    async def hold(
        self, lease: LeaseRequest | None, request: JobRequest, borrowed: Inheritance | None
    ) -> AsyncIterator[HeldAllocation]:
        if borrowed is not None:
            hold, lease = borrowed_job(request, borrowed, self.again, request.reusable), None
        else:
            hold = self.allocate(request)
        async with hold as allocation, held(TOOLS, request, allocation, lease) as found:
            yield found

    @asynccontextmanager
    async def job(self, request: JobRequest, found: HeldAllocation) -> AsyncIterator[Job]:
        assert isinstance(found, SlurmAllocation)
        yield cast(Job, WholeJob(found.for_tenant(request)))
        found.sound &= self.wants[request.container].sound

    @asynccontextmanager
    async def allocate(self, request: JobRequest) -> AsyncIterator[Allocation]:
        self.asked.append(request)
        if self.refuses is not None:
            raise self.refuses
        state = JobState()
        state.is_job(str(len(self.asked)))
        request.on_job_id(state.job_id, True)
        self.held[state.job_id] = state
        try:
            yield Allocation(state.job_id, {"SLURM_SUBMIT_DIR": "/first", "SLURM_X": "x"}, state)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.01)
            self.endings.append(request.ending())
            if self.not_given_back is not None:
                raise self.not_given_back
            del self.held[state.job_id]

    @asynccontextmanager
    async def again(self, request: JobRequest, found: Inheritance) -> AsyncIterator[Allocation]:
        self.again_asked.append(found)
        yield Allocation(found.facts["job"], found.facts["environment"])
        self.endings.append(request.ending())

    async def output_of(self, argv: list[str], child_env: ChildEnv) -> str:
        await trio.sleep(0.01)
        return f"{self.limit}\n"

    async def begins(self, needs: Needs | None = PLAIN, **how: Any) -> "Container":
        container = Container(self, needs, **how)
        self.nursery.start_soon(container.live)
        await container.there.wait()
        return container

    async def lives(self, needs: Needs | None = PLAIN, **how: Any) -> "Container":
        container = await self.begins(needs, **how)
        await container.ends()
        return container

    @property
    def waiting(self) -> list[str]:
        return [job.job_id for job in self.jobs.waiting_jobs()]


class Container:
    """One that has a job for a while."""

    def __init__(self, cluster: Cluster, needs: Needs | None, **how: Any) -> None:
        self.there, self._over, self.gone = trio.Event(), trio.Event(), trio.Event()
        self.known: list[tuple[str, bool]] = []
        self.lost: list[Ending] = []
        self.suspended: list[bool] = []
        self.failure: Exception | None = None
        self.held: Allocation | None = None
        self.scope = trio.CancelScope()
        self._cluster, self.needs = cluster, needs
        self._ending = exited(how.get("status", 0))
        self.sound = how.get("sound", True)
        reusable = how.get("reusable", True)
        self.journal = Journal(str(cluster.directory / "log"), Log(), "c")
        self.request = JobRequest(
            container=f"c{cluster.count}", child_env=ChildEnv({}), record="/",
            directory=how.get("directory", "/mine"), journal=self.journal,
            ending=lambda: self._ending, on_lost=self.lost.append,
            on_job_id=lambda *known: self.known.append(known),
            on_suspended=self.suspended.append, reusable=lambda: reusable,
        )  # fmt: skip
        cluster.wants[self.request.container] = self
        cluster.count += 1

    async def live(self) -> None:
        try:
            with self.scope:
                async with self._cluster.jobs.job(
                    *(cast(Engine, self._cluster), self.request, CONFIG, self._cluster.count),
                    *(None, Settings()),
                ) as job:
                    self.held = cast(Allocation, job)
                    self.there.set()
                    await self._over.wait()
        except Exception as error:
            self.failure = error
        finally:
            self.journal.close()
            self.there.set()
            self.gone.set()

    async def ends(self) -> None:
        self._over.set()
        await self.gone.wait()

    @property
    def job(self) -> str:
        assert self.held is not None
        return self.held.job_id


@pytest.fixture
async def cluster(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Cluster:
    cluster = Cluster(nursery, tmp_path)
    monkeypatch.setattr(held_allocation, "output_of", cluster.output_of)
    monkeypatch.setattr(held_allocation, "_now", trio.current_time)
    return cluster


async def test_the_next_one_gets_the_same_job(cluster: Cluster, autojump_clock: Clock) -> None:
    first = await cluster.lives(status=7)
    assert (first.known, cluster.waiting) == ([("1", True)], ["1"])
    second = await cluster.begins(directory="/theirs")
    assert (second.known, cluster.waiting) == ([("1", True)], [])
    assert second.held is not None
    assert second.held.environment == {"SLURM_SUBMIT_DIR": "/theirs", "SLURM_X": "x"}
    await second.ends()
    assert len(cluster.asked) == 1
    await trio.sleep(LINGER + 1)
    assert cluster.endings == [exited(0)]  # how the last one ended


async def test_it_waits_no_longer_than_linger(cluster: Cluster, autojump_clock: Clock) -> None:
    await cluster.lives()
    await trio.sleep(LINGER - 1)
    [waiting] = cluster.jobs.waiting_jobs()
    assert (waiting.job_id, waiting.options) == ("1", ("-N1",))
    assert 0 < waiting.seconds <= 1
    await trio.sleep(1.5)
    assert (cluster.waiting, cluster.held, cluster.jobs.any) == ([], {}, False)
    assert (await cluster.begins()).job == "2"


async def test_each_container_gives_it_all_of_linger(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    for _ in range(5):
        assert (await cluster.lives()).job == "1"
        await trio.sleep(LINGER - 1)
    long = await cluster.begins()
    await trio.sleep(3 * LINGER)
    assert long.job == "1"
    assert cluster.held.keys() == {"1"}


@pytest.mark.parametrize("other", [LARGE, HOUR, None])
async def test_another_request_gets_another_job(
    cluster: Cluster, autojump_clock: Clock, other: Needs | None
) -> None:
    await cluster.lives()
    assert (await cluster.begins(other)).job == "2"
    assert cluster.waiting == ["1"]


async def test_one_container_at_a_time(cluster: Cluster, autojump_clock: Clock) -> None:
    await cluster.lives()
    several = [await cluster.begins() for _ in range(5)]
    assert sorted(one.job for one in several) == ["1", "2", "3", "4", "5"]
    for one in several:
        await one.ends()
    assert sorted(cluster.waiting) == ["1", "2", "3", "4", "5"]
    assert (await cluster.lives()).job == cluster.waiting[-1]  # the others come to their end


async def test_the_time_that_a_container_asks_for_is_left(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    await cluster.lives(HOUR)
    for _ in range(7):
        await trio.sleep(LINGER / 2)
        assert (await cluster.lives(HOUR)).job == "1"
    long = await cluster.begins(HOUR)
    await trio.sleep(3600)
    await long.ends()
    assert (await cluster.begins(HOUR)).job == "2"


@pytest.mark.parametrize("limit", ["INVALID", "", "59:00"])
async def test_a_limit_that_is_not_known_or_too_low(
    cluster: Cluster, autojump_clock: Clock, limit: str
) -> None:
    cluster.limit = limit
    await cluster.lives(HOUR)
    assert (await cluster.begins(HOUR)).job == "2"


@pytest.mark.parametrize("how", [{"sound": False}, {"reusable": False}, {"keeps": False}])
async def test_a_doubtful_job_is_released(
    cluster: Cluster, autojump_clock: Clock, how: dict[str, Any]
) -> None:
    cluster.jobs.lingers = how.pop("keeps", True)
    await cluster.lives(**how)
    assert (cluster.waiting, cluster.held) == ([], {})


async def test_one_that_is_ended_releases_it(cluster: Cluster, autojump_clock: Clock) -> None:
    """As in `delete`: what the request says of it is then that it did not end by itself."""
    one = await cluster.begins(reusable=False)
    one.scope.cancel()
    await one.gone.wait()
    assert cluster.held == {}


@pytest.mark.parametrize("sentence", ["has been revoked.", "ended"])
async def test_a_job_that_ends_while_it_waits_is_forgotten(
    cluster: Cluster, autojump_clock: Clock, sentence: str
) -> None:
    first = await cluster.lives()
    state = cluster.held["1"]
    if sentence != "ended":  # salloc has said it, and `on_lost` comes a moment later
        state.feed(f"salloc: Job allocation 1 {sentence}")
        assert (await cluster.begins()).job == "2"
    cluster.asked[0].on_lost(taken("cancelled", "job 1 was cancelled"))
    assert (await cluster.begins()).job == str(len(cluster.asked))
    await trio.sleep(0.1)
    assert "1" not in cluster.held
    assert first.lost == []


async def test_the_container_in_it_learns_of_the_loss(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    first = await cluster.lives()
    second = await cluster.begins()
    cluster.asked[0].on_lost(taken("cancelled", "job 1 was cancelled"))
    assert (first.lost, len(second.lost)) == ([], 1)
    await second.ends()
    assert cluster.held == {}


async def test_a_suspended_job_is_not_lent(cluster: Cluster, autojump_clock: Clock) -> None:
    await cluster.lives()
    cluster.held["1"].suspended = True
    second = await cluster.begins()
    assert (second.job, cluster.waiting) == ("2", [])
    await trio.sleep(LINGER + 1)
    assert cluster.held.keys() == {"2"}
    cluster.asked[1].on_suspended(True)
    assert second.suspended == [True]


def loan_request(tools: Tools = TOOLS, needs: Needs = PLAIN) -> bytes:
    return msgspec.json.encode(LeaseRequest(tools, needs))


async def test_it_is_lent_to_another_supervisor(cluster: Cluster, autojump_clock: Clock) -> None:
    await cluster.lives(status=3)
    lost: list[Ending] = []
    async with cluster.jobs.lend(loan_request(), lost.append) as borrowed:
        assert borrowed is not None
        assert (borrowed.facts["job"], cluster.waiting) == ("1", [])
        await trio.sleep(3 * LINGER)
        borrowed.clean = True
    assert cluster.waiting == ["1"]
    async with cluster.jobs.lend(loan_request(), lost.append):
        cluster.asked[0].on_lost(taken("cancelled", "job 1 was cancelled"))
    assert len(lost) == 1
    assert (cluster.waiting, cluster.held, cluster.endings) == ([], {}, [exited(3)])


@pytest.mark.parametrize(
    "other",
    [
        loan_request(needs=LARGE),
        loan_request(msgspec.structs.replace(TOOLS, conf="/etc/other")),
        b"{}",
        b"\xff",
    ],
)
async def test_it_is_not_lent_for_another_request(
    cluster: Cluster, autojump_clock: Clock, other: bytes
) -> None:
    await cluster.lives()
    async with cluster.jobs.lend(other, lambda _: None) as borrowed:
        assert borrowed is None
    assert cluster.waiting == ["1"]


class Theirs:
    """A supervisor that lends a job."""

    def __init__(self) -> None:
        self.sock, self.ours = socket.socketpair()
        self.requests: list[bytes] = []

    shares_jobs = True

    async def borrow(self, needs: bytes) -> Inheritance | None:
        self.requests.append(needs)
        facts = {"job": "70", "environment": {"SLURM_SUBMIT_DIR": "/first"}, "salloc": 7}
        return Inheritance("", facts, {LOAN: self.ours.detach()})

    async def has_it_again(self) -> None:
        await trio.lowlevel.wait_readable(self.sock)
        self.said = self.sock.recv(1)
        self.sock.close()


@pytest.mark.parametrize("reusable", [True, False])
async def test_it_is_borrowed(cluster: Cluster, autojump_clock: Clock, *, reusable: bool) -> None:
    theirs = Theirs()
    cluster.nursery.start_soon(theirs.has_it_again)
    cluster.borrow_from = theirs.borrow
    container = await cluster.lives(reusable=reusable)
    assert (container.job, container.known) == ("70", [("70", False)])
    assert theirs.requests == [loan_request()]
    assert container.held is not None
    assert container.held.environment == {"SLURM_SUBMIT_DIR": "/mine"}
    assert theirs.said == (CLEAN if reusable else b"")
    assert (cluster.asked, cluster.waiting, cluster.again_asked) == ([], [], [])


async def test_who_has_borrowed_it_holds_it_when_the_lender_has_died(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    theirs = Theirs()
    cluster.borrow_from = theirs.borrow
    container = await cluster.begins(status=3)
    assert cluster.again_asked == []
    theirs.sock.close()
    await trio.sleep(1)
    [found] = cluster.again_asked
    assert found.facts == {
        "salloc": 7, "job": "70", "environment": {"SLURM_SUBMIT_DIR": "/mine"}
    }  # fmt: skip
    assert (container.lost, cluster.endings) == ([], [])
    await container.ends()
    assert cluster.endings == [exited(3)]


async def test_giving_back(cluster: Cluster, autojump_clock: Clock) -> None:
    for needs in (PLAIN, LARGE):
        await cluster.lives(needs)
    await cluster.jobs.release_waiting("3")
    assert cluster.waiting == ["1", "2"]
    await cluster.jobs.release_waiting("1")
    assert cluster.waiting == [*cluster.held] == ["2"]


async def test_a_refusal_is_the_containers(cluster: Cluster, autojump_clock: Clock) -> None:
    cluster.refuses = AllocationRefused("no", "scrun-failure")
    first = await cluster.begins()
    assert first.failure is cluster.refuses
    assert not cluster.jobs.any
    cluster.refuses = None
    assert (await cluster.begins()).job == "2"


async def test_what_goes_wrong_with_the_release_is_the_last_containers(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    cluster.not_given_back = EngineError("Slurm does not answer")
    first = await cluster.lives(reusable=False)
    assert first.failure is cluster.not_given_back


async def test_what_goes_wrong_with_the_release_of_a_waiting_job_is_logged(
    cluster: Cluster, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.not_given_back = EngineError("Slurm does not answer")
    await cluster.lives()
    await trio.sleep(LINGER + 1)
    assert "job 1: Slurm does not answer" in caplog.text
    assert not cluster.jobs.any


async def test_what_salloc_says_goes_to_the_container_that_is_there(
    cluster: Cluster, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.lives()
    write = cluster.asked[0].journal.write
    write("info", "nobody hears this")
    write("error", "nobody but the administrator")
    second = await cluster.begins()
    write("info", "for the second one")
    assert caplog.messages == ["job 1: nobody but the administrator"]
    log = (cluster.directory / "log").read_text()
    assert "for the second one" in log
    assert "nobody" not in log
    await second.ends()


async def test_one_that_ends_before_its_job_is_requested(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    container = Container(cluster, PLAIN)
    container.scope.cancel()
    cluster.nursery.start_soon(container.live)
    with trio.fail_after(5):
        await container.gone.wait()
        await trio.testing.wait_all_tasks_blocked()
    assert (cluster.held, cluster.jobs.any) == ({}, False)


async def test_the_end_of_the_supervisor_releases_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock
) -> None:
    async with trio.open_nursery() as nursery:
        cluster = Cluster(nursery, tmp_path)
        monkeypatch.setattr(held_allocation, "output_of", cluster.output_of)
        await cluster.lives()
        nursery.cancel_scope.cancel()
    assert cluster.held == {}
