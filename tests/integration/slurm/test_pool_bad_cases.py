"""Pools whose jobs, shims, supervisors and callers fail (`scrun pool`)."""

import os
import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.adoption import UNTIL_TOLD, kill_all_supervisors
from tests.harness.life import Life
from tests.harness.nightly import often
from tests.harness.processes import shims_of, signal_quietly
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while
from tests.integration.slurm.test_pool import (
    IN_POOL,
    ends,
    in_pool,
    job_of,
    nodes,
    started,
    stopped,
    told,
)

pytestmark = pytest.mark.shares_sites


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site("slurm-user", settings='[slurm]\nlaunch = "shim"\n')


def running(site: Site, script: str = "echo up; sleep 600") -> Life:
    return in_pool(site, script).created().start().says("up")


def reason(life: Life) -> str:
    return str(life.state()["annotations"]["org.scrun.reason"])


def gone(site: Site) -> None:
    wait_until("the end of the pool", lambda: not nodes(site), 30)
    wait_while("jobs", lambda: cluster.jobs(site.user, site.base.name), 30)


def test_a_time_limit(site: Site) -> None:
    [job] = started(site, "--cpus-per-task", "2")
    lives = [running(site) for _ in range(2)]
    waits = in_pool(site, "true").created().start()
    cluster.slurm("scontrol", "update", f"JobId={job}", "EndTime=now+2seconds")
    for life in lives:
        assert life.wait(90) == 124
        assert reason(life) == "time-limit"
        life.delete()
    assert waits.wait(30) == 125
    assert "pool mine has ended: " in waits.errors()
    assert "time limit" in waits.errors()
    waits.delete()
    gone(site)


def test_a_node_that_goes_down(site: Site) -> None:
    jobs = started(site, "--nodes", "2", "--exclusive")
    life = running(site)
    node = cluster.node_of(job_of(life))
    try:
        cluster.slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        assert life.wait(30) == 120
    finally:
        cluster.resume(node)
    [left] = {*jobs} - {life.job_id}
    wait_until("one node", lambda: [node["job_id"] for node in nodes(site)] == [left])
    life.delete()
    ends(in_pool(site).created().start())
    stopped(site)


def test_a_node_that_drains(site: Site) -> None:
    """Its job is there already: what runs goes on, and others still come."""
    [job] = started(site)
    life = running(site, "echo up; cat")
    node = cluster.node_of(job)
    change = f"NodeName={node}"
    with cluster.changed(change, "State=DRAIN", "Reason=test", back="State=RESUME"):
        waits = in_pool(site, "echo in; cat").created().start()
        ends(life)
        waits.says("in", 20)
        ends(waits)
        stopped(site)


def test_a_pool_of_another_supervisor(make_site: MakeSite) -> None:
    """It serves its own containers; all can see, change and stop it."""
    settings = 'group = "container"\n[slurm]\nlaunch = "shim"\n'
    other = make_site("slurm-user", settings=settings)
    other.must("pool", "start", "mine")
    refused = in_pool(other).refused()
    assert "pool mine: there is none of that name here" in refused
    assert "pool mine exists already" in other.fails("pool", "start", "mine")
    assert len(nodes(other)) == 1
    other.must("pool", "stop", "mine")
    gone(other)


def test_a_shim_that_is_killed(site: Site) -> None:
    """Its containers end, and the next one has another shim."""
    [job] = started(site, "--cpus-per-task", "2")
    lives = [running(site) for _ in range(2)]
    for pid in shims_of(job):
        signal_quietly(pid, signal.SIGKILL)
    for life in lives:
        assert life.wait(30) == 125
        assert reason(life) == "scrun-failure"
        life.delete()
    life = running(site, "echo up; cat")
    assert job_of(life) == job
    ends(life)
    stopped(site)


def test_nobody_takes_over(site: Site) -> None:
    """What the supervisor holds is released, with the jobs of idle nodes."""
    started(site, "--nodes", "2")
    life = running(site)
    site.kill_supervisors()
    assert life.wait(30) == life.without_supervisor
    wait_while("jobs", lambda: cluster.jobs(site.user, site.base.name), 30)
    assert nodes(site) == []
    site.must("delete", "--force", life.id)
    wait_while("claims", lambda: [*site.root.glob("@pool-*")], 30)


def test_a_supervisor_that_dies_while_its_jobs_are_pending(site: Site) -> None:
    with cluster.full(site.user):
        said = site.must("pool", "start", "mine")
        life = in_pool(site, "echo up; cat").created().start()
        kill_all_supervisors(site)
        wait_until("the pool", lambda: len(nodes(site)) == 1, 30)
        assert life.status == "running"
    life.says("up", 30)
    assert job_of(life) in said
    ends(life)
    stopped(site)


@pytest.mark.nightly
def test_a_supervisor_that_dies_again_and_again(site: Site, dice: random.Random) -> None:
    """Each container ends as it does by itself, and the pool is as it was."""
    jobs = started(site, "--nodes", "2", "--cpus-per-task", "2")
    bundle = site.bundle_of("sh", "-c", "sleep 0.3; exit 7")
    done: list[int] = []

    def run(number: int) -> None:
        name = f"n{number}"
        run = site.run("run", "--bundle", bundle, name, environment=IN_POOL, timeout=100)
        if run.returncode == 1:  # its supervisor has died while it was created
            assert "died while it created" in run.stderr or "try again" in run.stderr
            site.must("delete", "--force", name)
        done.append(run.returncode)

    with ThreadPoolExecutor(6) as threads:
        found = [threads.submit(run, number) for number in range(often(16, 40))]
        while not all(one.done() for one in found):
            time.sleep(1 + dice.random())
            kill_all_supervisors(site)
        for one in found:
            one.result()
    assert {*done} <= {7, 1}
    assert done.count(7) > len(done) // 2
    wait_until("idle nodes", lambda: [n["state"] for n in nodes(site)] == ["idle"] * 2, 30)
    assert sorted(node["job_id"] for node in nodes(site)) == sorted(jobs)
    assert all(node["free"]["processors"] == 2 for node in nodes(site))
    stopped(site)


@pytest.mark.nightly
def test_who_starts_one_is_interrupted(site: Site) -> None:
    with cluster.without():
        process = site.popen("pool", "start", "mine", stderr=subprocess.PIPE)
        wait_until("the pool", lambda: len(nodes(site)) == 1, 30)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 130
        wait_until("the end of the pool", lambda: not nodes(site), 60)
    wait_while("jobs", lambda: cluster.jobs(site.user, site.base.name), 60)


def test_a_supervisor_that_is_stopping_begins_none(site: Site) -> None:
    life = site.shell("echo up; sleep 600").created().start().says("up")
    [supervisor] = site.supervisors()
    with cluster.without():  # so that it cannot give the job back
        os.kill(supervisor, signal.SIGINT)
        assert life.wait(30) == 125
        assert f"supervisor {supervisor} is stopping" in site.fails("pool", "start", "mine")
    wait_while("the supervisor", lambda: supervisor in site.supervisors(), 60)
    assert nodes(site) == []
    life.run("delete", "--force", life.id)


@pytest.mark.nightly
def test_two_that_stop_it(site: Site) -> None:
    started(site)
    life = running(site)
    both = [site.popen("pool", "stop", "mine", stderr=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate(timeout=60)[1] for process in both]
    assert 0 in [process.returncode for process in both]
    assert all("there is no pool mine" in words.decode() for words in said if words)
    assert life.wait() == 143
    gone(site)


def test_members_of_a_pod_are_on_one_node(site: Site) -> None:
    started(site, "--nodes", "2")
    lives = []
    for _ in range(2):
        config = site.config("sh", "-c", UNTIL_TOLD)
        config["annotations"] = {"org.scrun.pod": f"{site.base.name}.together"}
        lives.append(site.life(config=config, environment=IN_POOL).created().start())
    alone = running(site, "echo up; cat")
    assert job_of(lives[0]) == job_of(lives[1]) != job_of(alone)
    kill_all_supervisors(site)
    told(lives[0])
    told(lives[1])
    ends(alone)
    wait_until("idle nodes", lambda: all(node["state"] == "idle" for node in nodes(site)), 30)
    stopped(site)


def test_a_cluster_whose_containers_slurm_makes(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings='[slurm]\nlaunch = "container"\n')
    assert 'a pool needs shims: set launch = "auto"' in site.fails("pool", "start", "mine")
    assert nodes(site) == []
    here = make_site("local-user")
    assert "engine local has no pools" in here.fails("pool", "start", "mine")


def test_what_is_wrong_is_said_in_one_line(site: Site) -> None:
    for line, said in (
        ("start", "pool start needs a name"),
        ("start a/b", "pool start needs a name"),
        ("start mine --nodes 0", "--nodes 0: a number from 1 to 1024 expected"),
        ("start mine --nodes x", "--nodes x: a number"),
        ("start mine --format json", "pool start: --format has no meaning there"),
        ("resize mine", "pool resize needs --nodes"),
        ("stop mine --nodes 1", "pool stop: --nodes has no meaning there"),
        ("stop none", "there is no pool none: see 'scrun pool list'"),
        ("list none", "there is no pool none"),
        ("begin mine", "unknown action 'begin': use start, list, stop, resize"),
    ):
        assert said in site.fails("pool", *line.split())
