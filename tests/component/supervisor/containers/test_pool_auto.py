"""The pool `auto`: when it asks for nodes, and when it lets them go."""

from pathlib import Path

import pytest
import trio
import trio.testing

from scrun.core.errors import AllocationRefused, StateError
from scrun.model.states import taken
from scrun.settings.file.load import Settings, Slurm
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.containers.automatic import automatic_call
from scrun.supervisor.contracts.pool_call import PoolCall
from scrun.supervisor.contracts.reuse import Room
from tests.component.supervisor.containers.test_pools import ONE, Container, Place, goes


@pytest.fixture
async def place(nursery: trio.Nursery, tmp_path: Path) -> Place:
    return Place(nursery, tmp_path)


async def comes(place: Place, name: str, room: Room = ONE, *, is_asked: bool = True) -> Container:
    container = await place.comes(name, room, pool="auto", is_asked=is_asked)
    await trio.sleep(0.1)
    return container


async def test_the_first_container_starts_it(
    place: Place, autojump_clock: trio.testing.MockClock
) -> None:
    one, other = await comes(place, "one"), await comes(place, "other")
    assert (one.job, other.job) == ("1", "1")
    await goes(one)
    await goes(other)
    assert place.pools.any
    await trio.sleep(29)
    assert [*place.cluster.held] == ["1"]
    await trio.sleep(2)
    assert (place.cluster.held, place.pools.any, place.ended, place.left_there()) == (
        {}, False, 1, [],
    )  # fmt: skip
    assert (await comes(place, "later")).job == "2"
    await place.pools.stop_all()


async def test_it_grows_when_they_wait(
    place: Place, autojump_clock: trio.testing.MockClock
) -> None:
    first, second = await comes(place, "a", Room(2)), await comes(place, "b", Room(2))
    third = await comes(place, "c", Room(2))
    assert (first.job, second.job) == ("1", "")
    await trio.sleep(2.5)
    assert second.job == ""
    await trio.sleep(1)
    assert second.job == "2"
    await trio.sleep(100)
    assert third.job == ""  # it has as many as it may have
    assert third.waits == ["PoolResources"]
    await goes(first)
    assert third.job == "1"
    await goes(second)
    await trio.sleep(40)
    assert [*place.cluster.held] == ["1"]  # the other one was idle
    await place.pools.stop_all()


async def test_one_job_is_pending_at_a_time(
    place: Place, autojump_clock: trio.testing.MockClock
) -> None:
    place.cluster.grant = trio.Event()
    waits = [await comes(place, name, Room(2)) for name in "abc"]
    await trio.sleep(100)
    assert len(place.cluster.asked) == 1
    place.cluster.grant.set()
    await trio.sleep(10)
    assert sorted(one.job for one in waits) == ["", "1", "2"]
    await place.pools.stop_all()


async def test_a_job_that_nobody_waits_for_any_more(
    place: Place, autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    place.cluster.grant = trio.Event()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            there = Place(nursery, tmp_path)
            there.pools, there.cluster = place.pools, place.cluster
            await comes(there, "gone")
            scope.cancel()
    assert len(place.cluster.asked) == 1
    await trio.sleep(31)
    assert not place.pools.any


@pytest.mark.parametrize("is_asked", [True, False])
async def test_slurm_refuses_it(
    place: Place, autojump_clock: trio.testing.MockClock, is_asked: bool
) -> None:
    place.cluster.refuses = AllocationRefused("no such partition")
    one = await comes(place, "one", is_asked=is_asked)
    assert not place.pools.any
    if is_asked:
        assert "pool auto has ended: no such partition" in str(one.failure)
    else:
        assert one.job == "own"
        assert "it has a job of its own, not pool auto: " in one.log.read_text()
    place.cluster.refuses = None
    await trio.sleep(50)
    soon = await comes(place, "soon", is_asked=is_asked)
    assert soon.job == ("1" if is_asked else "own")
    if not is_asked:
        assert "not pool auto: no such partition" in soon.log.read_text()
        await trio.sleep(20)
        assert (await comes(place, "later", is_asked=False)).job == "1"
    await place.pools.stop_all()


async def test_slurm_refuses_one_more(
    place: Place, autojump_clock: trio.testing.MockClock
) -> None:
    await comes(place, "one", Room(2))
    waits = await comes(place, "waits", Room(2))
    place.cluster.refuses = AllocationRefused("too many jobs")
    await trio.sleep(4)
    place.cluster.refuses = None
    await trio.sleep(50)
    assert (waits.job, waits.failure) == ("", None)
    await trio.sleep(20)
    assert waits.job == "2"
    await place.pools.stop_all()


async def test_a_lost_node_is_replaced_for_those_who_wait(
    place: Place, autojump_clock: trio.testing.MockClock
) -> None:
    runs, waits = await comes(place, "runs", Room(2)), await comes(place, "waits", Room(2))
    place.cluster.asked[0].on_lost(taken("time-limit", "its time is over"))
    await trio.testing.wait_all_tasks_blocked()
    assert runs.lost is not None
    assert (waits.failure, waits.job) == (None, "2")
    await place.pools.stop_all()


async def test_one_for_which_its_nodes_are_too_small(
    place: Place, autojump_clock: trio.testing.MockClock
) -> None:
    large = await comes(place, "large", Room(3), is_asked=False)
    assert large.job == "own"
    assert "not pool auto: none of its nodes has 3 processors" in large.log.read_text()
    await trio.sleep(200)
    assert (len(place.cluster.asked), place.pools.any) == (1, False)


async def test_stopping_it_ends_those_who_wait(
    place: Place, autojump_clock: trio.testing.MockClock
) -> None:
    runs = await comes(place, "runs", Room(2))
    waits = await comes(place, "waits", Room(2), is_asked=False)
    assert await place.pools.stop("auto")
    assert runs.lost is not None
    assert "pool auto was stopped" in str(waits.failure)
    assert not place.pools.any


async def test_it_is_not_started_by_name(place: Place) -> None:
    call = PoolCall("auto", ChildEnv({}), "/", Settings())
    with pytest.raises(StateError, match="pool auto starts by itself"):
        await place.pools.start(call, place.engine, 1)


async def test_a_supervisor_for_one_pod_has_none(
    place: Place, autojump_clock: trio.testing.MockClock
) -> None:
    place.settings = None
    one = await comes(place, "one", is_asked=False)
    assert one.job == "own"
    assert "its supervisor is for this pod alone" in one.log.read_text()


def test_its_jobs_ask_for_what_the_settings_say() -> None:
    environment = {"PATH": "/bin", "SCRUN_CPUS_PER_TASK": "7", "SCRUN_POOL": "auto"}
    settings = Settings(slurm=Slurm(pool_node={"SCRUN_MEM_PER_NODE": "2G"}))
    call = automatic_call(settings, ChildEnv(environment))
    assert (call.name, call.directory) == ("auto", "/")
    assert call.child_env.environment == {"PATH": "/bin", "SCRUN_MEM_PER_NODE": "2G"}
