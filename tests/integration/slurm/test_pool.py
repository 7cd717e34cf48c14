"""Containers in a pool (`scrun pool`), which cost Slurm nothing."""

import json
import os
import signal
import time
from typing import Any

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.adoption import PENDING, UNTIL_TOLD, adopted, kill_supervisor
from tests.harness.life import Life
from tests.harness.nightly import nightly
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.shares_sites

IN_POOL = {"SCRUN_POOL": "mine"}


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site("slurm-user", settings='[slurm]\nlaunch = "shim"\n')


def nodes(site: Site) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(site.must("pool", "list", "--format", "json"))
    return found


def started(site: Site, *options: str) -> list[str]:
    """Start the pool, and wait until its nodes are there."""
    said = site.must("pool", "start", "mine", *options)
    wait_until("the nodes", lambda: all(node["state"] == "idle" for node in nodes(site)))
    return said.removeprefix("pool mine: ").strip().split(", ")


def stopped(site: Site) -> None:
    site.must("pool", "stop", "mine")
    assert nodes(site) == []
    wait_while("jobs", lambda: cluster.jobs(site.user, site.base.name))


def job_of(life: Life) -> str:
    found: str = life.state()["annotations"]["org.scrun.job_id"]
    return found


def test_three_at_once(site: Site) -> None:
    jobs = started(site, "--cpus-per-task", "2", "--nodes", "2")
    assert len(jobs) == 2
    lives = [site.shell("cat", stdin="pipe", environment=IN_POOL).created() for _ in range(3)]
    for life in lives:
        life.start()
    assert {job_of(life) for life in lives} == {*jobs}
    assert sum(node["containers"] for node in nodes(site)) == 3
    for life in lives:
        life.close_stdin()
        assert life.wait() == 0
        life.delete()
    assert all(node["containers"] == 0 for node in nodes(site))
    stopped(site)


def in_pool(site: Site, script: str = "cat", **asking: str) -> Life:
    return site.shell(script, stdin="pipe", environment={**IN_POOL, **asking})


def ends(life: Life, status: int = 0) -> None:
    life.close_stdin()
    assert life.wait() == status
    life.delete()


def told(life: Life) -> None:
    """Have a container end that waits to be told."""
    life.kill("USR1")
    assert life.wait(20) == 7
    life.delete()


def test_a_container_without_room_waits_for_it(site: Site) -> None:
    started(site, "--cpus-per-task", "2")
    first = in_pool(site, SCRUN_CPUS_PER_TASK="2").created().start()
    large = in_pool(site, "echo large; cat", SCRUN_CPUS_PER_TASK="2").created().start()
    assert large.state()["annotations"][PENDING] == "PoolResources"
    assert "pending: PoolResources" in site.must("list")
    large.complains("pending: PoolResources [(]the nodes of its pool have no room for it yet")
    assert [node["waiting"] for node in nodes(site)] == [1]
    ends(first)
    large.says("large")
    assert PENDING not in large.state()["annotations"]
    assert [node["waiting"] for node in nodes(site)] == [0]
    ends(large)
    stopped(site)


def test_a_smaller_one_passes(site: Site) -> None:
    started(site, "--cpus-per-task", "2")
    first = in_pool(site).created().start()
    large = in_pool(site, SCRUN_CPUS_PER_TASK="2").created().start()
    small = in_pool(site, "echo small; cat").created().start().says("small")
    assert large.state()["annotations"][PENDING] == "PoolResources"
    large.run("delete", "--force")
    assert [node["waiting"] for node in nodes(site)] == [0]
    ends(first)
    ends(small)
    stopped(site)


@pytest.mark.parametrize(
    ("asking", "words"),
    [
        ({"SCRUN_CPUS_PER_TASK": "99"}, "none of its nodes has 99 processors"),
        ({"SCRUN_NTASKS": "2"}, "SCRUN_NTASKS=2: containers of a pool have one task each"),
        ({"SCRUN_POOL": "other"}, "there is none of that name here: start it with"),
    ],
)
def test_one_that_can_never_run_there_is_refused(
    site: Site, asking: dict[str, str], words: str
) -> None:
    started(site)
    said = in_pool(site, **asking).refused()
    assert words in said
    assert len(said.splitlines()) == 1
    stopped(site)


def test_a_pool_of_the_settings_is_a_wish(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings='[slurm]\nlaunch = "shim"\npool = "mine"\n')
    alone = site.shell("cat", stdin="pipe").created()
    [job] = started(site)
    shared = site.shell("cat", stdin="pipe").created()
    large = site.shell("cat", stdin="pipe", environment={"SCRUN_NTASKS": "2"}).created()
    aside = site.shell("cat", stdin="pipe", environment={"SCRUN_POOL": ""}).created()
    assert job_of(shared) == job
    assert len({job_of(life) for life in (alone, shared, large, aside)}) == 4
    log = (site.root / large.id / "log").read_text()
    assert "it has a job of its own, not pool mine: SCRUN_NTASKS=2" in log
    for life in (alone, shared, large, aside):
        life.start()
        ends(life)
    stopped(site)


def test_a_time_limit_asks_for_as_much_time(site: Site) -> None:
    [job] = started(site, "--time", "10")
    life = in_pool(site, SCRUN_TIMELIMIT="8").created().start()
    assert job_of(life) == job
    said = in_pool(site, SCRUN_TIMELIMIT="12").refused()
    assert "none of its nodes has 1 processors, and as much time left as it asks for" in said
    ends(life)
    stopped(site)


def test_each_has_an_ending_of_its_own(site: Site) -> None:
    [job] = started(site, "--cpus-per-task", "3")
    fails, killed, goes_on = (
        in_pool(site, f"echo up; {script}").created().start().says("up")
        for script in ("exit 3", "sleep 600", "cat; exit 4")
    )
    assert fails.wait() == 3
    killed.kill("KILL")
    assert killed.wait() == 137
    assert site.must("exec", goes_on.id, "sh", "-c", "echo $SLURM_JOB_ID") == f"{job}\n"
    ends(goes_on, 4)
    for life in (fails, killed):
        life.delete()
    [node] = nodes(site)
    assert (node["job_id"], node["state"], node["free"]["processors"]) == (job, "idle", 3)
    stopped(site)


def test_stop_ends_what_runs_and_what_waits(site: Site) -> None:
    started(site)
    runs = in_pool(site, "echo up; sleep 600").created().start().says("up")
    waits = in_pool(site, "sleep 600").created().start()
    site.must("pool", "stop", "mine")
    assert (runs.wait(), waits.wait()) == (143, 125)
    assert "pool mine was stopped" in runs.state()["annotations"]["org.scrun.message"]
    assert "pool mine has ended: pool mine was stopped" in waits.errors()
    assert nodes(site) == []
    wait_while("jobs", lambda: cluster.jobs(site.user, site.base.name))
    assert "there is no pool mine" in site.fails("pool", "stop", "mine")


def test_a_cancelled_job_ends_its_containers_alone(site: Site) -> None:
    first, second = started(site, "--nodes", "2")
    lives = {
        job_of(life): life
        for life in (
            in_pool(site, "echo up; sleep 600").created().start().says("up") for _ in range(2)
        )
    }
    cluster.slurm("scancel", first)
    assert lives[first].wait() == 122
    assert lives[first].state()["annotations"]["org.scrun.reason"] == "cancelled"
    wait_until("its end", lambda: [node["job_id"] for node in nodes(site)] == [second])
    lives[second].kill("KILL")
    assert lives[second].wait() == 137
    for life in lives.values():
        life.delete()
    cluster.slurm("scancel", second)
    wait_until("the end of the pool", lambda: not nodes(site))


def test_resize(site: Site) -> None:
    [first] = started(site)
    runs = in_pool(site, "echo up; cat").created().start().says("up")
    site.must("pool", "resize", "mine", "--nodes", "2")
    wait_until(
        "a second node", lambda: sorted(n["state"] for n in nodes(site)) == ["busy", "idle"]
    )
    site.must("pool", "resize", "mine", "--nodes", "1")
    wait_until("one node", lambda: [node["job_id"] for node in nodes(site)] == [first])
    ends(runs)
    stopped(site)


def test_what_slurm_refuses_is_no_pool(site: Site) -> None:
    said = site.fails("pool", "start", "mine", "--partition", "nowhere")
    assert "nvalid partition" in said
    assert len(said.splitlines()) == 1
    assert nodes(site) == []


def test_a_pool_that_is_pending(site: Site) -> None:
    with cluster.full(site.user):
        said = site.must("pool", "start", "mine")
        life = in_pool(site, "echo up; cat").created().start()
        assert life.state()["annotations"][PENDING] == "PoolPending"
        wait_until("a reason", lambda: nodes(site)[0]["state"] == "pending: Resources")
    life.says("up", 30)
    assert job_of(life) in said
    ends(life)
    stopped(site)


def test_it_outlives_its_supervisor(site: Site) -> None:
    """With what runs in it, what waits for it, and its idle nodes."""
    jobs = started(site, "--nodes", "2")
    lives = [in_pool(site, UNTIL_TOLD).created().start().says("up") for _ in range(2)]
    waits = in_pool(site, "echo in; cat").created().start()
    for times in (1, 2):
        kill_supervisor(site)
        assert [life.status for life in lives] == ["running"] * 2
        adopted(*lives, waits, times=times)
        wait_until("its nodes", lambda: len(nodes(site)) == 2)
        assert sorted(node["job_id"] for node in nodes(site)) == sorted(jobs)
        site.must("exec", lives[0].id, "true")
        # what those have that were there is not free
        wait_until("both", lambda: [node["containers"] for node in nodes(site)] == [1, 1])
        assert [node["free"]["processors"] for node in nodes(site)] == [0, 0]
        assert waits.state()["annotations"][PENDING] == "PoolResources"
    told(lives[0])
    waits.says("in", 30)
    ends(waits)
    told(lives[1])
    wait_until("idle nodes", lambda: all(node["state"] == "idle" for node in nodes(site)))
    kill_supervisor(site)
    wait_until("its nodes", lambda: len(nodes(site)) == 2)
    life = in_pool(site, "echo again; cat").created().start().says("again")
    assert job_of(life) in jobs
    ends(life)
    time.sleep(8)  # for longer than the successor looks for jobs of the dead
    assert sorted(node["job_id"] for node in nodes(site)) == sorted(jobs)
    stopped(site)


def test_descriptors_of_idle_containers(site: Site) -> None:
    """So that 4,000 have room in a supervisor, a successor and a keeper of 24,000 open files.

    Anchor, lock, the caller's standard error, and three streams; 7 of the keeper, with what a
    successor has to know. A stream whose container has written to it has two more.
    """
    started(site, "--cpus-per-task", "16")

    def counts() -> tuple[int, int]:
        pids = (*site.supervisors(), *site.keepers())
        time.sleep(2)  # the keeper is asleep then
        supervisor, keeper = (len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
        return supervisor, keeper

    def idle(count: int) -> list[Life]:
        return [in_pool(site).created().start() for _ in range(count)]

    lives = idle(1)
    before = counts()
    lives += idle(4)
    after = counts()
    assert [(b - a) / 4 for a, b in zip(before, after, strict=True)] == [6, 7]
    kill_supervisor(site)
    adopted(*lives)
    before = counts()
    lives += idle(4)
    assert [(b - a) / 4 for a, b in zip(before, counts(), strict=True)] == [6, 7]
    assert counts()[0] - after[0] <= 4 * 6 + 6  # those that were adopted have no more
    for life in lives:
        ends(life)
    stopped(site)


@pytest.mark.parametrize("how", [nightly("TERM"), "restart", "INT"])
def test_the_end_of_the_supervisor(site: Site, how: str) -> None:
    [job] = started(site)
    if how == "restart":
        assert site.must("supervisor", "restart") == ""
    else:
        [supervisor] = site.supervisors()
        os.kill(supervisor, getattr(signal, f"SIG{how}"))
    if how == "INT":
        wait_while("jobs", lambda: cluster.jobs(site.user, site.base.name))
        return
    wait_until("the pool", lambda: [node["job_id"] for node in nodes(site)] == [job])
    life = in_pool(site, "echo up; cat").created().start().says("up")
    assert job_of(life) == job
    ends(life)
    stopped(site)
