"""Who holds the job of a pod, and for how long: the engine here is a table in memory."""

import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Never, cast

import msgspec
import pytest
import trio

from scrun.core.errors import AllocationRefused, EngineError
from scrun.core.pods import pod_of
from scrun.model.states import Ending, exited, taken
from scrun.model.waiting import Waiting
from scrun.oci.config import Config, Linux, Namespace, Process, Root
from scrun.settings.file.load import Log, Settings
from scrun.settings.slurm.request_sources import Flags, gather
from scrun.settings.slurm.requests import salloc_arguments, srun_arguments
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.containers.held_job import ending_of, that_count
from scrun.supervisor.containers.pods import Pods
from scrun.supervisor.containers.pools import Pools
from scrun.supervisor.contracts.engine import Engine, Job, JobPlan, JobRequest
from scrun.supervisor.contracts.reuse import HeldAllocation
from scrun.supervisor.core.deposits import Deposits
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.log.journal import Journal

SANDBOX = "io.kubernetes.cri-o.SandboxID"
SIZE = {"SCRUN_TIMELIMIT": "5", "SCRUN_OVERCOMMIT": "yes"}


class Place(msgspec.Struct, frozen=True):
    """A job, or a step's view of it."""

    id: str
    environment: dict[str, str]
    inside: bool

    def entered(self) -> AbstractContextManager[None]:
        return nullcontext()


class Sharing:
    """A job where containers may share namespaces."""

    def __init__(self, id: str) -> None:  # noqa: A002 (that of `Job`)
        self.id = id
        self.environment = {"SLURM_JOB_ID": id}
        self.here = False

    @contextmanager
    def entered(self) -> Iterator[None]:
        self.here = True
        try:
            yield
        finally:
            self.here = False

    async def neighbours(self) -> Mapping[str, Mapping[str, Any]]:
        return {}


class Held(msgspec.Struct, frozen=True):
    """A job that is held."""

    job_id: str
    environment: dict[str, str]


class Machine:
    """An engine that gives a job when it is told to."""

    shares_jobs = False

    def __init__(self) -> None:
        self.grant = trio.Event()
        self.grant.set()
        self.asked: list[JobRequest] = []
        self.left: list[Inheritance | None] = []
        self.inside: list[JobRequest] = []
        self.held: set[str] = set()
        self.failure: Exception | None = None
        self.not_given_back: Exception | None = None
        self.endings: list[Ending | None] = []
        self.breaks = trio.Event()
        self.opens = trio.Event()
        self.opens.set()
        self.shares = False

    @asynccontextmanager
    async def allocate(self, request: JobRequest) -> AsyncIterator[Job]:
        if job_id := request.child_env.environment.get("SLURM_JOB_ID"):
            request.on_job_id(job_id, False)
            self.inside.append(request)
            yield cast(Job, Sharing(job_id) if self.shares else Place(job_id, {}, True))
            return
        async with self._hold(request) as held, self._job(request, held) as job:
            yield job

    @asynccontextmanager
    async def _hold(
        self, request: JobRequest, left: Inheritance | None = None
    ) -> AsyncIterator[HeldAllocation]:
        self.left.append(left)
        self.asked.append(request)
        job_id = str(len(self.asked))
        request.on_job_id(job_id, True)
        self.held.add(job_id)
        try:
            await self.grant.wait()
            if self.failure is not None:
                raise self.failure
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._break)
                yield cast(HeldAllocation, Held(job_id, {"SLURM_JOB_ID": job_id}))
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
            self.endings.append(request.ending())
            if self.not_given_back is not None:
                raise self.not_given_back
            self.held.discard(job_id)

    @asynccontextmanager
    async def _job(self, request: JobRequest, held: HeldAllocation) -> AsyncIterator[Job]:
        first = Place(held.job_id, {**held.environment}, False)
        await self.opens.wait()
        yield cast(Job, Sharing(held.job_id) if self.shares else first)

    async def _break(self) -> None:
        await self.breaks.wait()
        raise EngineError("it broke")


class Cluster(Machine):
    """One whose jobs several containers may use."""

    shares_jobs = True

    async def plan(self, request: JobRequest) -> JobPlan:
        await trio.lowlevel.checkpoint()
        return JobPlan(self._hold, self._job)

    def held_again(self) -> None:
        raise AssertionError("nothing is left")


class Member:
    """A container, as far as it wants a job."""

    def __init__(self, crowd: "Crowd", name: str, pod: str | None, **asking: Any) -> None:
        self.name = name
        self.job: Job | None = None
        self.known: list[tuple[str, bool]] = []
        self.lost: list[Ending] = []
        self.news: list[Waiting | None] = []
        self.failure: Exception | None = None
        self.ending: Ending | None = None
        self.settled = trio.Event()
        self.gone = trio.Event()
        self.scope = trio.CancelScope()
        self.log = crowd.directory / name
        self.log.touch()
        self.anchor = 1000 + crowd.count
        crowd.count += 1
        self._journal = Journal(str(self.log), Log(), name)
        self._crowd = crowd
        annotations = {} if pod is None else {SANDBOX: pod}
        paths = asking.pop("joins", [])
        namespaces = [Namespace("network", f"/proc/{pid}/ns/net") for pid in paths]
        self._config = Config(
            "1.0.2", Process(args=["true"], cwd="/"), Root("rootfs"), annotations=annotations,
            linux=Linux(namespaces=namespaces),
        )  # fmt: skip
        environment = asking.pop("environment", {})
        self._found = asking.pop("found", None)
        self.request = JobRequest(
            container=name, child_env=ChildEnv(environment), directory="/", record="/",
            journal=self._journal, on_job_id=lambda job, owned: self.known.append((job, owned)),
            on_lost=self._lost, ending=lambda: self.ending, on_waiting=self.news.append, **asking,
        )  # fmt: skip

    def _lost(self, ending: Ending) -> None:
        self.lost.append(ending)
        self.scope.cancel()

    async def live(self) -> None:
        crowd = self._crowd
        engine = cast(Engine, crowd.cluster)
        try:
            with self.scope:
                async with crowd.pods.job(
                    engine, self.request, self._config, self.anchor, self._found, Settings()
                ) as self.job:
                    self.settled.set()
                    await trio.sleep_forever()
        except Exception as error:
            self.failure = error
        finally:
            self._journal.close()
            self.settled.set()
            self.gone.set()

    async def ends(self, status: int) -> None:
        self.ending = exited(status)
        await self.leave()

    async def leave(self) -> None:
        self.scope.cancel()
        await self.gone.wait()

    @property
    def asked(self) -> JobRequest:
        """What the engine was asked for this one, as a member."""
        asked = [*self._crowd.cluster.inside, *self._crowd.cluster.asked]
        [request] = [request for request in asked if request.container == self.name]
        return request

    @property
    def place(self) -> Place:
        return cast(Place, self.job)


async def nobody_arrives(_: Config) -> None:
    pass


async def nobody_lends(needs: bytes) -> Never:
    raise AssertionError(f"somebody borrows {needs!r}")


class Crowd:
    """Containers that come and go."""

    def __init__(self, nursery: trio.Nursery, directory: Path) -> None:
        self.directory = directory
        self.cluster: Machine = Cluster()
        deposits = Deposits()
        pools = Pools(str(directory), nursery, deposits, lambda: None)
        self.pods = Pods(
            nursery, deposits, nobody_arrives, nobody_lends, lambda: None, pools, lingers=False
        )
        self.count = 0
        self._nursery = nursery

    async def comes(self, name: str, pod: str | None = None, **asking: Any) -> Member:
        member = Member(self, name, pod, **asking)
        self._nursery.start_soon(member.live)
        await trio.testing.wait_all_tasks_blocked()
        return member


@pytest.fixture
async def crowd(nursery: trio.Nursery, tmp_path: Path) -> Crowd:
    return Crowd(nursery, tmp_path)


async def pod_of_two(crowd: Crowd) -> tuple[Member, Member]:
    return await crowd.comes("infra"), await crowd.comes("one", "infra")


@pytest.mark.parametrize(
    ("annotations", "pod"),
    [
        ({}, None),
        ({SANDBOX: "infra"}, "infra"),
        ({"io.kubernetes.cri.sandbox-id": "sandbox"}, "sandbox"),
        ({SANDBOX: "infra", "org.scrun.pod": "mine"}, "mine"),
        ({SANDBOX: "infra", "org.scrun.pod": ""}, "infra"),
        ({"org.scrun.pod": 7}, None),
        (None, None),
        ([], None),
    ],
)
def test_the_name_of_a_pod(tmp_path: Path, annotations: object, pod: str | None) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"annotations": annotations}))
    assert pod_of(str(tmp_path), None) == pod
    assert pod_of("/nonexistent", str(config)) == pod


@pytest.mark.parametrize("content", ["", "[]", "7", "{}", '{"annotations": {'])
def test_a_bundle_that_names_no_pod(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    assert pod_of(str(tmp_path), None) is None
    assert pod_of(str(tmp_path / "none"), None) is None


@pytest.mark.parametrize("first", [0, 1])
async def test_the_last_one_gives_the_job_back(crowd: Crowd, first: int) -> None:
    members = await pod_of_two(crowd)
    assert [member.place.id for member in members] == ["1", "1"]
    assert [member.place.inside for member in members] == [False, True]
    assert members[1].known == [("1", True)] * 2
    await members[first].leave()
    assert crowd.cluster.held == {"1"}
    assert not members[1 - first].gone.is_set()
    await members[1 - first].leave()
    assert crowd.cluster.held == set()
    # nobody has to release it for one that has left others in it
    assert [member.known[-1] for member in members] == [("1", first == 1), ("1", first == 0)]


async def test_who_comes_after_the_end_gets_another_job(crowd: Crowd) -> None:
    infra = await crowd.comes("infra")
    await infra.leave()
    members = await crowd.comes("one", "infra"), await crowd.comes("two", "infra")
    assert [member.place.id for member in members] == ["2", "2"]


async def test_one_that_was_restarted_joins_again(crowd: Crowd) -> None:
    infra, _ = await pod_of_two(crowd)
    await infra.leave()
    again = await crowd.comes("infra")
    assert (again.place.id, again.place.inside) == ("1", True)


async def test_what_others_have_left_is_not_asked_for_again(crowd: Crowd) -> None:
    """Two containers of a pod that were yet to be made, in the order in which they had come."""
    deposits, left = Deposits(), Inheritance("infra/1", {"job": "9"}, {})
    job, members = deposits.again(left), []
    for name in ("infra", "one"):
        left.together.line_up(name)
    for name in ("one", "infra"):
        found = Inheritance(name, {"pod": "infra"}, {}, job=left)
        deposit = deposits.again(found)
        deposit.needs(job)
        members.append(await crowd.comes(name, "infra", found=found, deposit=deposit))
    assert [member.place.inside for member in members] == [True, False]
    assert crowd.cluster.left == [left]
    late = await crowd.comes("late", "infra")
    assert (late.place.id, late.place.inside) == ("1", True)


async def test_others_have_their_own_job(crowd: Crowd) -> None:
    members = [await crowd.comes(name) for name in ("one", "two")]
    assert [member.place.id for member in members] == ["1", "2"]


async def test_joining_the_network_of_another_container(crowd: Crowd) -> None:
    one = await crowd.comes("one")
    two = await crowd.comes("two", joins=[1, one.anchor])
    three = await crowd.comes("three", joins=[two.anchor])
    assert [member.place.id for member in (one, two, three)] == ["1", "1", "1"]
    for member in (one, two, three):
        await member.leave()
    later = await crowd.comes("later", joins=[one.anchor])
    assert later.place.id == "2"


async def test_whose_namespaces_a_member_names(crowd: Crowd) -> None:
    infra, one = await pod_of_two(crowd)
    stranger = await crowd.comes("stranger")
    two = await crowd.comes("two", "infra", joins=[1, infra.anchor, stranger.anchor])
    assert two.asked.joins == {f"/proc/{infra.anchor}/ns": "infra"}
    assert cast(Held, two.asked.beside) == Held("1", {"SLURM_JOB_ID": "1"})
    assert one.asked.joins == {}


async def test_those_who_share_namespaces_know_who_is_in_the_job(crowd: Crowd) -> None:
    crowd.cluster.shares = True
    infra, one = await pod_of_two(crowd)
    places = [cast(Sharing, member.job) for member in (infra, one)]
    assert [place.here for place in places] == [True, True]
    await infra.leave()
    assert [place.here for place in places] == [False, True]
    assert crowd.cluster.held == {"1"}


async def test_the_first_one_leaves_while_the_job_is_pending(crowd: Crowd) -> None:
    crowd.cluster.grant = trio.Event()
    infra, one = await pod_of_two(crowd)
    assert one.known == [("1", True)]
    await infra.leave()
    assert crowd.cluster.held == {"1"}
    crowd.cluster.grant.set()
    await one.settled.wait()
    assert one.place.id == "1"


@pytest.mark.parametrize("how", ["it is there", "it leaves"])
async def test_others_join_when_the_first_one_has_its_place(crowd: Crowd, how: str) -> None:
    """They would have shims of their own else."""
    crowd.cluster.opens = trio.Event()
    infra, one = await pod_of_two(crowd)
    assert (infra.job, one.job) == (None, None)
    if how == "it leaves":
        await infra.leave()
    else:
        crowd.cluster.opens.set()
    await one.settled.wait()
    assert (one.place.id, one.place.inside) == ("1", True)


async def test_nobody_waits_any_more(crowd: Crowd) -> None:
    crowd.cluster.grant = trio.Event()
    for member in await pod_of_two(crowd):
        await member.leave()
    assert crowd.cluster.held == set()


async def test_all_are_told_what_the_job_waits_for(crowd: Crowd) -> None:
    crowd.cluster.grant = trio.Event()
    infra, one = await pod_of_two(crowd)
    waiting = Waiting("Resources")
    [asked] = crowd.cluster.asked
    asked.on_waiting(waiting)
    late = await crowd.comes("late", "infra")
    asked.on_waiting(None)
    assert [member.news for member in (infra, one, late)] == [[waiting, None]] * 3
    assert "job 1 pending: Resources" in one.log.read_text()


async def test_a_lost_job_is_lost_for_all(crowd: Crowd) -> None:
    members = await pod_of_two(crowd)
    [asked] = crowd.cluster.asked
    ending = taken("cancelled", "job 1 was cancelled")
    asked.on_lost(ending)
    for member in members:
        await member.gone.wait()
    assert [member.lost for member in members] == [[ending]] * 2
    assert crowd.cluster.held == set()


async def test_who_comes_after_the_loss_gets_another_job(crowd: Crowd) -> None:
    infra = await crowd.comes("infra")
    infra.scope.shield = True  # it takes its time
    [asked] = crowd.cluster.asked
    asked.on_lost(taken("cancelled", "job 1 was cancelled"))
    one = await crowd.comes("one", "infra")
    assert one.place.id == "2"


async def test_a_refusal_is_told_to_all(crowd: Crowd) -> None:
    crowd.cluster.grant = trio.Event()
    members = await pod_of_two(crowd)
    crowd.cluster.failure = AllocationRefused("no job for container infra: invalid partition")
    crowd.cluster.grant.set()
    for member in members:
        await member.gone.wait()
    assert str(members[0].failure) == "no job for container infra: invalid partition"
    assert isinstance(members[1].failure, AllocationRefused)
    assert str(members[1].failure) == (
        "no job for container one, in a pod with infra: no job for container infra: invalid "
        "partition"
    )
    assert crowd.cluster.held == set()


async def test_an_engine_that_breaks_ends_all(crowd: Crowd) -> None:
    members = await pod_of_two(crowd)
    crowd.cluster.breaks.set()
    for member in members:
        await member.gone.wait()
        [ending] = member.lost
        assert (ending.reason, ending.text) == ("scrun-failure", "job 1: it broke")


async def test_a_job_that_could_not_be_given_back_is_the_last_ones_to_tell(crowd: Crowd) -> None:
    """Its record keeps the job then."""
    infra, one = await pod_of_two(crowd)
    crowd.cluster.not_given_back = ZeroDivisionError("a fault of ours")
    await one.leave()
    assert one.failure is None
    await infra.leave()
    assert isinstance(infra.failure, ZeroDivisionError)


async def test_a_pod_ends_as_its_members_did(crowd: Crowd) -> None:
    infra, one = await pod_of_two(crowd)
    two = await crowd.comes("two", "infra")
    await one.ends(0)
    await two.ends(7)
    assert crowd.cluster.endings == []
    await infra.ends(137)
    assert crowd.cluster.endings == [exited(7)]


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        ((), None),
        ((0,), 0),
        ((7,), 7),
        ((137,), 137),  # nobody else
        ((0, 7, 0, 3), 7),
        ((7, 137), 7),
        ((0, 137), 0),  # the infra container is killed
        ((143, 0), 0),
        ((143, 137), 137),
        ((139, 0), 139),  # SIGSEGV is nobody's wish
        ((137, 125, 0), 125),
    ],
)
def test_how_a_pod_ends(statuses: tuple[int, ...], status: int | None) -> None:
    found = ending_of([exited(one) for one in statuses])
    assert (found.status if found else None) == status


@pytest.mark.parametrize("count", range(1, 6))
def test_two_endings_tell_how_a_pod_ends(count: int) -> None:
    """However many members it has had."""
    for statuses in itertools.product((0, 7, 9, 137, 143), repeat=count):
        endings = [exited(one) for one in statuses]
        kept: list[Ending] = []
        for ending in endings:
            kept = that_count([*kept, ending])
        assert ending_of(kept) == ending_of(endings)
        assert len(kept) <= 2


async def test_later_requests_have_no_effect(crowd: Crowd) -> None:
    await crowd.comes("infra", config_requests=SIZE)
    await crowd.comes(
        "one", "infra",
        environment={"SCRUN_EXCLUSIVE": ""},
        config_requests={**SIZE, "SCRUN_LABELIO": "yes"},
        flags=Flags({"SCRUN_CPUS_PER_TASK": "2"}, {"SCRUN_CPUS_PER_TASK": "--cpus"}, ("noted",)),
    )  # fmt: skip
    one = crowd.cluster.inside[0]
    defaults = {"SCRUN_MEM_PER_NODE": "2G", "SCRUN_JOB_NUM_NODES": "2"}
    wanted = gather(one.child_env.environment, one.config_requests, defaults, one.flags)
    assert srun_arguments(wanted.requests, (22, 5)) == ["--label"]
    assert salloc_arguments(wanted.requests, (22, 5)) == []
    assert wanted.notes == ("noted",)
    log = (crowd.directory / "one").read_text()
    assert "it joins job 1, in a pod with container infra, which has sized it: " in log
    assert (
        "SCRUN_CPUS_PER_TASK=2, SCRUN_TIMELIMIT=5, SCRUN_OVERCOMMIT=yes, SCRUN_EXCLUSIVE=" in log
    )
    assert "LABELIO" not in log


async def test_there_is_nothing_to_share_on_this_machine(crowd: Crowd) -> None:
    crowd.cluster = Machine()
    members = await pod_of_two(crowd)
    assert [member.place.id for member in members] == ["1", "2"]


async def test_a_job_of_the_callers(crowd: Crowd) -> None:
    one = await crowd.comes("one", environment={"SLURM_JOB_ID": "7"})
    assert (one.place.id, one.known) == ("7", [("7", False)])
    assert crowd.cluster.asked == []


@pytest.mark.parametrize("moment", [0, 1, 2, 3, 4, 5])
async def test_leaving_at_any_moment(
    crowd: Crowd, moment: int, autojump_clock: Callable[[], None]
) -> None:
    """The one who leaves takes nothing away, and leaves nothing behind."""
    infra = await crowd.comes("infra")
    one = Member(crowd, "one", "infra")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.live)
        for _ in range(moment):
            await trio.lowlevel.checkpoint()
        await one.leave()
    assert crowd.cluster.held == {"1"}
    await infra.leave()
    assert crowd.cluster.held == set()
