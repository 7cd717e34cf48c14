"""Who gets which node of a pool, and who waits: the engine here is a table in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from scrun.core.errors import AllocationRefused, EngineError, StateError
from scrun.model.states import Ending, taken
from scrun.settings.file.load import Log, Settings, Slurm
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.containers.claims import Claim
from scrun.supervisor.containers.pool_node import PoolNode
from scrun.supervisor.containers.pools import Pools
from scrun.supervisor.contracts.engine import Engine, JobRequest
from scrun.supervisor.contracts.pool_call import PoolCall
from scrun.supervisor.contracts.reuse import HeldAllocation, PoolAllocation, Room, Seat, Taken
from scrun.supervisor.core.deposits import Deposits
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.log.journal import Journal
from tests.harness.claims import claim_of_the_dead

CALL = PoolCall("p", ChildEnv({"PATH": "/bin"}), "/", Settings())


ONE = Room(1)


class Node:
    """A job of one node that is held for a pool."""

    def __init__(self, job_id: str, room: Room) -> None:
        self.job_id, self.node, self.room = job_id, f"node{job_id}", room
        self.environment = {"SLURM_JOB_ID": job_id}
        self.is_open = True
        self.left = 60.0
        self.gpus = [str(index) for index in range(room.gpus)]
        self.taken: list[Taken] = []

    def lasts(self, seconds: float) -> bool:
        return seconds <= self.left

    def seat(self, taken: Taken) -> HeldAllocation:
        self.taken.append(taken)
        return cast(HeldAllocation, self)


class Cluster:
    """Gives nodes with two processors, when it is told to."""

    name = "table"
    shares_jobs = True

    def __init__(self) -> None:
        self.room = Room(2, 1000)
        self.asked: list[JobRequest] = []
        self.held: dict[str, Node] = {}
        self.grant = trio.Event()
        self.grant.set()
        self.refuses: Exception | None = None

    @asynccontextmanager
    async def pool_node(
        self, request: JobRequest, left: Inheritance | None = None
    ) -> AsyncIterator[PoolAllocation]:
        if self.refuses is not None:
            raise self.refuses
        self.asked.append(request)
        job_id = str(len(self.asked))
        request.on_job_id(job_id, True)
        await self.grant.wait()
        self.held[job_id] = Node(job_id, self.room)
        try:
            yield cast(PoolAllocation, self.held[job_id])
        finally:
            del self.held[job_id]


class Container:
    """One that wants a seat, has it, and leaves when it is told to."""

    def __init__(
        self, pools: Pools, directory: Path, name: str, seat: Seat, *by: Engine | Settings | None
    ) -> None:
        self.waits: list[str | None] = []
        self.job_ids: list[tuple[str, bool]] = []
        self.job = ""
        self.lost: Ending | None = None
        self.failure: Exception | None = None
        self.over = trio.Event()
        self.left = trio.Event()
        self._pools, self._seat = pools, seat
        self._by: Any = by or (None, Settings())
        log = directory / name
        self.request = JobRequest(
            container=name,
            child_env=ChildEnv({}),
            directory="/",
            record=str(log),
            journal=Journal(str(log), Log(), name),
            on_job_id=lambda job_id, owned: self.job_ids.append((job_id, owned)),
            on_lost=self._lose,
            on_waiting=lambda news: self.waits.append(news.reason if news else None),
        )
        self.log = log

    def _lose(self, ending: Ending) -> None:
        self.lost = ending
        self.over.set()

    async def live(self) -> None:
        try:
            async with self._pools.seat(self._seat, self.request, *self._by) as seat:
                self.job = "own" if seat is None else seat.job_id
                await self.over.wait()
        except AllocationRefused as error:
            self.failure = error
        self.left.set()


class Place:
    """A cluster, and a supervisor with pools."""

    def __init__(self, nursery: trio.Nursery, directory: Path) -> None:
        self.cluster = Cluster()
        self.ended = 0
        self.pools = Pools(str(directory), nursery, Deposits(), self._changed)
        self.settings: Settings | None = Settings(slurm=Slurm(pool_max=2, pool_idle=30))
        self._nursery, self._directory = nursery, directory

    def _changed(self) -> None:
        self.ended += 1

    @property
    def engine(self) -> Engine:
        return cast(Engine, self.cluster)

    async def start(self, count: int = 1) -> None:
        await self.pools.start(CALL, self.engine, count)
        await trio.testing.wait_all_tasks_blocked()

    async def comes(
        self,
        name: str,
        room: Room | None = ONE,
        *,
        pool: str = "p",
        is_asked: bool = True,
        seconds: float = 0,
    ) -> Container:
        seat = Seat(pool, is_asked, room, "" if room else "it wants too much", seconds)
        container = Container(self.pools, self._directory, name, seat, self.engine, self.settings)
        self._nursery.start_soon(container.live)
        await trio.testing.wait_all_tasks_blocked()
        return container

    def left_there(self) -> list[str]:
        """The claims in the root directory."""
        return [path.name for path in self._directory.glob("@pool-*")]


@pytest.fixture
async def place(nursery: trio.Nursery, tmp_path: Path) -> Place:
    return Place(nursery, tmp_path)


async def goes(container: Container) -> None:
    container.over.set()
    await trio.testing.wait_all_tasks_blocked()


async def test_they_share_a_node(place: Place) -> None:
    await place.start()
    one, other = await place.comes("one"), await place.comes("other")
    assert (one.job, other.job) == ("1", "1")
    # the pool's end is not a container's: nobody's record owns the job
    assert {owned for _, owned in one.job_ids} == {False}
    [row] = place.pools.rows()
    assert (row.containers, row.free, row.room) == (2, Room(0, 1000), Room(2, 1000))
    await goes(one)
    await goes(other)
    [row] = place.pools.rows()
    assert (row.containers, row.free, row.state) == (0, Room(2, 1000), "idle")
    await place.pools.stop_all()
    assert (place.cluster.held, place.left_there()) == ({}, [])


async def test_an_id_that_comes_again(place: Place) -> None:
    """A pod keeps the seat of its first container, whose id another one may have meanwhile."""
    await place.start()
    of_pod, other = await place.comes("one"), await place.comes("one")
    await goes(of_pod)
    [row] = place.pools.rows()
    assert (row.containers, row.free) == (1, Room(1, 1000))
    await goes(other)
    [row] = place.pools.rows()
    assert (row.containers, row.free) == (0, Room(2, 1000))
    await place.pools.stop_all()


async def test_without_room_they_wait_in_order(place: Place) -> None:
    await place.start()
    running = await place.comes("running", Room(2))
    first, second = await place.comes("first", Room(2)), await place.comes("second", Room(2))
    assert (first.waits, second.waits) == (["PoolResources"], ["PoolResources"])
    assert first.job == ""
    assert "pending: PoolResources (the nodes of its pool" in first.log.read_text()
    await goes(running)
    assert (first.job, second.job) == ("1", "")
    assert first.waits == ["PoolResources", None]
    await goes(first)
    assert second.job == "1"
    await place.pools.stop_all()


async def test_a_smaller_one_passes(place: Place) -> None:
    await place.start()
    running = [await place.comes(name) for name in ("one", "two")]
    large, small = await place.comes("large", Room(2)), await place.comes("small", Room(1))
    assert (large.job, small.job) == ("", "")
    await goes(running[0])
    assert (large.job, small.job) == ("", "1")
    await place.pools.stop_all()


async def test_one_that_takes_no_processor_fits_into_a_full_node(place: Place) -> None:
    await place.start()
    running, large = await place.comes("running", Room(2)), await place.comes("large", Room(2))
    shares, more = await place.comes("shares", Room(0)), await place.comes("more", Room(0, 1001))
    assert (running.job, large.job, shares.job, more.job) == ("1", "", "1", "")
    assert "has 0 processors and 1001 MiB" in str(more.failure)
    await place.pools.stop_all()


async def test_those_without_a_processor_spread(place: Place) -> None:
    await place.start(2)
    found = [await place.comes(name, Room(0)) for name in "abcd"]
    assert sorted(one.job for one in found) == ["1", "1", "2", "2"]
    await place.pools.stop_all()


async def test_nobody_comes_to_a_suspended_node(place: Place) -> None:
    await place.start()
    place.cluster.held["1"].is_open = False
    waits = await place.comes("waits")
    assert (waits.job, waits.waits) == ("", ["PoolResources"])
    place.cluster.held["1"].is_open = True
    place.cluster.asked[0].on_suspended(False)
    await trio.testing.wait_all_tasks_blocked()
    assert waits.job == "1"
    await place.pools.stop_all()


async def test_a_node_has_to_last_long_enough(place: Place) -> None:
    await place.start(2)
    place.cluster.held["1"].left = 10
    found = [await place.comes(name, seconds=30) for name in "ab"]
    assert [one.job for one in found] == ["2", "2"]
    waits, too_long = await place.comes("c", seconds=30), await place.comes("d", seconds=90)
    assert waits.waits == ["PoolResources"]
    assert str(too_long.failure).endswith("processors, and as much time left as it asks for")
    short = await place.comes("e", seconds=10)
    assert short.job == "1"
    await place.pools.stop_all()


async def test_memory_counts(place: Place) -> None:
    await place.start()
    running, large = (
        await place.comes("running", Room(1, 600)),
        await place.comes("large", Room(1, 500)),
    )
    small = await place.comes("small", Room(1, 400))
    assert (running.job, large.job, small.job) == ("1", "", "1")
    await place.pools.stop_all()


async def test_the_fuller_node_is_taken_first(place: Place) -> None:
    """So that large ones find room."""
    await place.start(2)
    one = await place.comes("one")
    other = await place.comes("other")
    large = await place.comes("large", Room(2))
    assert one.job == other.job != large.job
    await place.pools.stop_all()


async def test_a_pending_node_may_be_large_enough(place: Place) -> None:
    place.cluster.grant = trio.Event()
    await place.start()
    fits, too_large = await place.comes("fits", Room(2)), await place.comes("large", Room(3))
    assert fits.waits == too_large.waits == ["PoolPending"]
    place.cluster.grant.set()
    await trio.testing.wait_all_tasks_blocked()
    assert fits.job == "1"
    assert "none of its nodes has 3 processors" in str(too_large.failure)
    await place.pools.stop_all()


@pytest.mark.parametrize(
    ("room", "pool", "why"),
    [
        (Room(3), "p", "none of its nodes has 3 processors"),
        (Room(1, 1001), "p", "none of its nodes has 1 processors and 1001 MiB of memory"),
        (None, "p", "it wants too much"),
        (Room(1), "q", "there is none of that name here"),
    ],
)
async def test_what_cannot_be_there(place: Place, room: Room | None, pool: str, why: str) -> None:
    await place.start()
    asks = await place.comes("asks", room, pool=pool)
    assert str(asks.failure).startswith(f"no job for container asks in pool {pool}: {why}")
    wishes = await place.comes("wishes", room, pool=pool, is_asked=False)
    assert (wishes.failure, wishes.job) == (None, "own")
    assert f"it has a job of its own, not pool {pool}: {why}" in wishes.log.read_text()
    await place.pools.stop_all()


async def test_one_that_waits_may_go(place: Place) -> None:
    await place.start()
    running = await place.comes("running", Room(2))
    with trio.CancelScope() as scope:
        seat = Seat("p", True, Room(2))
        gone = Container(place.pools, Path(running.log.parent), "gone", seat)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gone.live)
            await trio.testing.wait_all_tasks_blocked()
            assert place.pools.rows()[0].waiting == 1
            scope.cancel()
    assert place.pools.rows()[0].waiting == 0
    await goes(running)
    assert place.pools.rows()[0].free == Room(2, 1000)
    await place.pools.stop_all()


async def test_a_node_that_is_taken_away(place: Place) -> None:
    await place.start(2)
    first, second = await place.comes("first", Room(2)), await place.comes("second", Room(2))
    waits = await place.comes("waits", Room(2))
    ending = taken("cancelled", "job 1 was cancelled")
    lost, stays = (first, second) if first.job == "1" else (second, first)
    place.cluster.asked[0].on_lost(ending)
    await trio.testing.wait_all_tasks_blocked()
    assert (lost.lost, stays.lost) == (ending, None)
    assert [*place.cluster.held] == ["2"]
    assert (waits.job, waits.failure) == ("", None)
    place.cluster.asked[1].on_lost(taken("preempted", "job 2 was preempted"))
    await waits.left.wait()
    assert str(waits.failure) == (
        "no job for container waits: pool p has ended: job 2 was preempted"
    )
    await trio.testing.wait_all_tasks_blocked()
    assert (place.pools.any, place.ended, place.left_there()) == (False, 1, [])


@pytest.mark.parametrize("error", [AllocationRefused("no"), EngineError("no shim")])
async def test_a_pool_that_slurm_refuses(place: Place, error: Exception) -> None:
    place.cluster.refuses = error
    with pytest.raises(type(error), match=str(error)):
        await place.start(2)
    await trio.testing.wait_all_tasks_blocked()
    assert (place.pools.any, place.left_there()) == (False, [])


async def test_a_root_directory_that_takes_no_claim(place: Place, tmp_path: Path) -> None:
    place.pools = Pools(str(tmp_path / "none"), place._nursery, Deposits(), lambda: None)
    with pytest.raises(FileNotFoundError):
        await place.start()
    assert not place.pools.any


async def test_many_that_wait(place: Place) -> None:
    """Each end costs those that wait hardly anything, and they come in order."""
    await place.start()
    waiting = [await place.comes("first", Room(2))]
    for number in range(300):
        seat = Seat("p", True, Room(2))
        waiting.append(Container(place.pools, Path(waiting[0].log.parent), f"n{number}", seat))
        place._nursery.start_soon(waiting[-1].live)
    await trio.testing.wait_all_tasks_blocked()
    assert place.pools.rows()[0].waiting >= 300
    order = []
    while there := [one for one in waiting if one.job and not one.left.is_set()]:
        order += there
        await goes(there[0])
    assert len(order) == 301
    await place.pools.stop_all()


async def test_who_comes_costs_those_that_wait_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 that came at once took half a minute of the event loop."""
    await place.start()
    await place.comes("first", Room(2))
    looked: list[Room] = []
    could_have = PoolNode.could_have

    def look(node: PoolNode, room: Room, seconds: float) -> bool:
        looked.append(room)
        return could_have(node, room, seconds)

    monkeypatch.setattr(PoolNode, "could_have", look)
    for number in range(20):
        await place.comes(f"n{number}", Room(2))
    assert len(looked) == 20
    await place.pools.stop_all()


async def test_who_has_been_there_comes_first(place: Place, tmp_path: Path) -> None:
    """A successor does not know what is free until all of them are back."""
    claim = Claim(str(tmp_path), "fast")
    left = Inheritance(
        "pool-p/1", {"pool": "p", "pool.claim": claim.name}, {"pool.claim": claim.fd}
    )
    left.together.awaits("c1")
    place.pools.adopt(left, place.engine, CALL)
    await trio.testing.wait_all_tasks_blocked()
    new = await place.comes("new")
    assert (new.job, new.waits) == ("", ["PoolResources"])
    left.together.without("c1")
    await trio.testing.wait_all_tasks_blocked()
    assert new.job == "1"
    await place.pools.stop_all()


async def test_a_container_arrives_before_its_pool(place: Place, tmp_path: Path) -> None:
    """A successor is asked for it before it has adopted that."""
    name, kept = claim_of_the_dead(tmp_path, "p")
    early = await place.comes("early")
    assert (early.job, early.failure) == ("", None)
    left = Inheritance("pool-p/1", {"pool": "p", "pool.claim": name}, {"pool.claim": kept})
    left.together.is_whole()
    place.pools.adopt(left, place.engine, CALL)
    await trio.sleep(0.2)
    assert early.job == "1"
    await place.pools.stop_all()


async def test_its_name_is_taken(place: Place) -> None:
    await place.start()
    with pytest.raises(StateError, match="pool p exists already"):
        await place.start()
    assert len(place.cluster.held) == 1
    await place.pools.stop_all()


async def test_another_size(place: Place) -> None:
    await place.start(2)
    busy = await place.comes("busy")
    assert await place.pools.resize("p", 4)
    await trio.testing.wait_all_tasks_blocked()
    assert len(place.cluster.held) == 4
    assert await place.pools.resize("p", 1)
    await trio.testing.wait_all_tasks_blocked()
    assert [*place.cluster.held] == [busy.job]
    # it takes no more, and goes with its last container
    place.cluster.grant = trio.Event()
    await place.pools.resize("p", 2)
    place.pools.rows()
    assert not await place.pools.resize("q", 2)
    await place.pools.stop_all()
    assert place.cluster.held == {}


async def test_a_node_that_retires_takes_no_more(place: Place) -> None:
    await place.start(2)
    first, second = await place.comes("first"), await place.comes("second", Room(2))
    assert first.job != second.job
    await place.pools.resize("p", 1)
    ending = [row.job_id for row in place.pools.rows() if row.state == "ending"]
    third = await place.comes("third")
    if ending == [first.job]:
        assert third.waits == ["PoolResources"]
    else:
        assert third.job == first.job
    leaving = first if ending == [first.job] else second
    await goes(leaving)
    assert len(place.cluster.held) == 1
    await place.pools.stop_all()


async def test_one_that_no_successor_finds(place: Place) -> None:
    await place.start(2)
    assert (place.pools.is_kept, place.pools.unadoptable) == (True, {})
    place.cluster.asked[0].job_deposit.give_up("its streams go over srun")
    assert place.pools.unadoptable == {"p": "its streams go over srun"}
    assert place.pools.is_kept
    place.pools.end_unadoptable()
    await trio.testing.wait_all_tasks_blocked()
    assert (place.cluster.held, place.pools.unadoptable) == ({}, {})


async def test_stopping_it_ends_all_of_them(place: Place) -> None:
    await place.start()
    runs, waits = await place.comes("runs", Room(2)), await place.comes("waits", Room(2))
    assert await place.pools.stop("p")
    assert runs.lost is not None
    assert (runs.lost.status, runs.lost.text) == (143, "pool p was stopped")
    assert "pool p has ended: pool p was stopped" in str(waits.failure)
    assert not await place.pools.stop("p")
