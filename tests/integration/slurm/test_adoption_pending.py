"""Containers whose job is pending, or that are being staged, outlive their supervisor."""

import os
import random
import re
import signal
import time
from collections.abc import Callable

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.adoption import (
    COUNT,
    PENDING,
    UNTIL_TOLD,
    adopted,
    adoptions,
    begins,
    end,
    kill_all_supervisors,
    kill_now_and_then,
    kill_supervisor,
    numbers,
    output,
    pending,
    told,
)
from tests.harness.nightly import nightly
from tests.harness.processes import signal_quietly
from tests.harness.site import Site
from tests.harness.slow_staging import stage_slowly
from tests.harness.wait import wait_until, wait_while

NODES = "org.scrun.nodes"


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site("slurm-user", create_timeout=0.5)


def killed_while_stopped(site: Site, meanwhile: Callable[[], object]) -> None:
    """Kill a supervisor that does not notice what happens meanwhile."""
    supervisor = site.stopped_supervisor()
    try:
        meanwhile()
        time.sleep(1)
    finally:
        os.kill(supervisor, signal.SIGKILL)
    wait_while("the killed", lambda: supervisor in site.supervisors())


def test_one_that_was_started_runs_when_its_job_comes(site: Site) -> None:
    with cluster.full(site.user):
        life = pending(site)
        [job] = site.jobs()
        kill_supervisor(site)
        assert life.state()["status"] == "running"
        adopted(life)
        kill_supervisor(site)
        adopted(life, times=2)
        assert life.state()["annotations"][PENDING] == "Resources"
        assert site.jobs()[0].split()[0] == job.split()[0]
    assert life.wait(60) == 7
    assert output(life) == b"ran\n"
    said = life.errors().splitlines()
    assert len([line for line in said if "pending: Resources" in line]) == 1, said
    assert len([line for line in said if "has been allocated" in line]) == 1, said
    assert PENDING not in life.state()["annotations"]
    end(life)


def test_it_is_started_after_the_adoption(site: Site) -> None:
    with cluster.full(site.user):
        life = pending(site, UNTIL_TOLD, started=False)
        kill_supervisor(site)
        assert life.state()["status"] == "created"
        life.start(60)
        adopted(life)
        life.complains(re.compile("pending: Resources"))
        kill_supervisor(site)
        adopted(life, times=2)
    life.says("up", 60)
    kill_supervisor(site)  # it has been made by now, like any other
    wait_until("it is adopted again", lambda: adoptions(life) == 3, 20)
    told(life)


@pytest.mark.nightly
def test_its_job_comes_before_start(site: Site) -> None:
    with cluster.full(site.user):
        life = pending(site, UNTIL_TOLD, started=False)
        kill_supervisor(site)
        adopted(life)
    wait_until("nodes", lambda: NODES in life.state()["annotations"], 30)
    kill_supervisor(site)
    assert life.state()["status"] == "created"
    life.start(60).says("up", 30)
    life.kill("USR1")
    assert life.wait(30) == 7
    assert "queued" not in life.errors()  # that was over
    assert "allocated" not in life.errors()
    end(life)


@pytest.mark.usefixtures("queue")
@pytest.mark.parametrize(
    ("by", "started"),
    [
        ("delete", False),
        ("kill", True),
        ("engine", True),
        nightly("delete", True),
        nightly("kill", False),
        nightly("engine", False),
    ],
)
def test_one_that_is_not_wanted_any_more(site: Site, by: str, *, started: bool) -> None:
    life = pending(site, started=started)
    kill_supervisor(site)
    adopted(life)
    if by == "delete":
        life.run("delete", "--force")
        assert life.wait(20) == 137
        assert life.status == "gone"
        site.settle(20)
        return
    elif by == "kill":
        life.kill("TERM")
        assert life.wait(20) == 143
    else:
        os.kill(life.anchor, signal.SIGTERM)
        assert life.wait(20) == 143
    wait_while("its job", site.jobs, 20)
    assert output(life) == b""
    end(life)


@pytest.mark.usefixtures("queue")
@pytest.mark.parametrize("meanwhile", [nightly(False), True])
def test_its_job_is_cancelled(site: Site, *, meanwhile: bool) -> None:
    life = pending(site)
    [job] = site.jobs()

    def cancel() -> None:
        cluster.slurm("scancel", job.split()[0])

    if meanwhile:
        killed_while_stopped(site, cancel)
    else:
        kill_supervisor(site)
        adopted(life)
        cancel()
    assert life.wait(60) == 122
    assert life.state()["annotations"]["org.scrun.reason"] == "cancelled"
    life.complains(f"job {job.split()[0]} was cancelled")
    end(life)


@pytest.mark.parametrize("and_ends", [nightly(False), True])
def test_its_job_comes_while_nobody_looks(site: Site, *, and_ends: bool) -> None:
    with cluster.full(site.user):
        life = pending(site)
        [job] = site.jobs()
        supervisor = site.stopped_supervisor()
    wait_until("its job runs", lambda: any("RUNNING" in job for job in site.jobs()), 30)
    if and_ends:
        cluster.slurm("scancel", job.split()[0])
        wait_while("its job", site.jobs, 20)
    os.kill(supervisor, signal.SIGKILL)
    assert life.wait(60) == (122 if and_ends else 7)
    annotations = life.state()["annotations"]
    assert annotations["org.scrun.reason"] == ("cancelled" if and_ends else "exited")
    assert output(life) == (b"" if and_ends else b"ran\n")
    assert PENDING not in annotations
    end(life)


@pytest.mark.nightly
def test_its_successor_dies_at_once_too(site: Site) -> None:
    """It has read that the job came, and the next one has to learn that, too.

    Its own keeper may have nothing of that yet (`test_slurm_keepalive` holds that it has not).
    """
    with cluster.full(site.user):
        life = pending(site)
        supervisor = site.stopped_supervisor()
    wait_until("its job runs", lambda: any("RUNNING" in job for job in site.jobs()), 30)
    record = site.root / life.id / "state.json"
    os.kill(supervisor, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while NODES not in record.read_text():
        assert time.monotonic() < deadline
    kill_all_supervisors(site)
    assert life.wait(60) == 7
    assert output(life) == b"ran\n"
    end(life)


def its_own(text: str) -> bytes:
    """What the container has said, without what its supervisors said of its job."""
    lines = text.replace("\r\n", "\n").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("scrun: job ")).encode()


@pytest.mark.parametrize("kind", [nightly("plain"), "captured", nightly("terminal")])
def test_however_often_it_dies(site: Site, dice: random.Random, kind: str) -> None:
    """While it waits, gets its job, is staged, made and started: at seeded moments."""
    script = COUNT.format(20_000)
    with cluster.full(site.user):
        if kind == "captured":
            bundle = site.bundle_of("sh", "-c", script)
            site.must("run", "--detach", "--bundle", bundle, "one", timeout=60)
            wait_until("a reason", lambda: PENDING in site.must("state", "one"), 20)
        elif kind == "terminal":
            life = site.shell(f"stty -onlcr; {script}", terminal=True).created()
            terminal = life.terminal()
            life.start()
        else:
            life = pending(site, script)
        kill_now_and_then(site, dice, 3)
    kill_now_and_then(site, dice, 6)
    if kind == "captured":
        wait_until("its end", lambda: '"stopped"' in site.must("state", "one"), 90)
        state = site.must("state", "one")
        assert '"org.scrun.exit_status": "7"' in state.replace('":"', '": "'), state
        assert its_own(site.must("logs", "one")) == numbers(20_000)
        site.must("delete", "--force", "one")
        site.settle(20)
        return
    if kind == "terminal":
        shown = terminal.read_all(90)
        assert life.wait(60) == 7
        assert its_own(shown) == numbers(20_000)
        terminal.close()
    else:
        assert life.wait(90) == 7
        assert output(life) == numbers(20_000)
    end(life)


@pytest.mark.parametrize("part", [0, *map(nightly, range(1, 4))])
def test_one_that_is_killed_while_it_is_staged(site: Site, dice: random.Random, part: int) -> None:
    """What was staged is undone, and staged again; its program runs once."""
    with cluster.full(site.user):
        life = pending(site)
    wait_until("nodes", lambda: NODES in life.state()["annotations"], 30)
    time.sleep(dice.uniform(0, 0.05) * part)
    kill_all_supervisors(site)
    assert life.wait(60) == 7
    assert output(life) == b"ran\n"
    end(life)


@pytest.mark.usefixtures("queue")
def test_the_keeper_dies_too(site: Site) -> None:
    """Then nobody takes over: the job leaves the queue."""
    life = pending(site)
    keepers = [one.pid for one in site.processes() if one.is_keeper]
    supervisor = site.stopped_supervisor()
    for keeper in keepers:
        signal_quietly(keeper, signal.SIGKILL)
    os.kill(supervisor, signal.SIGKILL)
    assert life.wait(30) == 125
    wait_while("its job", site.jobs, 30)
    end(life)


def test_a_pod(site: Site, dice: random.Random) -> None:
    """They wait together, and get one job."""
    with cluster.full(site.user):
        first = begins(site).created().start()
        second = begins(site).created().start()
        wait_until("a reason", lambda: PENDING in second.state()["annotations"], 20)
        kill_now_and_then(site, dice, 2)
        wait_until("adoptions", lambda: adoptions(first) and adoptions(second), 20)
        third = begins(site).created()
        assert len(site.jobs()) == 1
    first.says("up", 60)
    second.says("up", 60)
    third.start(60).says("up", 60)
    assert len(site.jobs()) == 1
    first.kill("USR1")
    assert first.wait(30) == 7
    second.kill("USR1")
    third.kill("USR1")
    assert [second.wait(30), third.wait(30)] == [7, 7]
    end(first, second, third)


@pytest.mark.nightly
def test_a_pod_that_the_first_has_left(site: Site) -> None:
    with cluster.full(site.user):
        first, second = begins(site).created().start(), begins(site).created().start()
        wait_until("a reason", lambda: PENDING in second.state()["annotations"], 20)
        first.run("delete", "--force")
        kill_supervisor(site)
        adopted(second)
        assert len(site.jobs()) == 1
    second.says("up", 60).kill("USR1")
    assert second.wait(30) == 7
    end(second)


def test_one_that_is_staged_for_a_job_where_others_run(site: Site) -> None:
    first = begins(site).created(60).start(60).says("up", 60)
    stage_slowly(site)
    second = begins(site).created().start()
    assert "staged" in site.fails("exec", second.id, "true")
    kill_supervisor(site)
    adopted(first, second)
    second.says("up", 60)
    assert len(site.jobs()) == 1
    for life in (first, second):
        life.kill("USR1")
        assert life.wait(30) == 7
    end(first, second)


@pytest.mark.usefixtures("queue")
def test_a_restart_on_purpose(site: Site) -> None:
    life = pending(site)
    [before] = site.supervisors()
    site.must("supervisor", "restart", timeout=60)
    wait_until("another", lambda: site.supervisors() not in ([], [before]), 30)
    adopted(life)
    life.run("delete", "--force")
    site.settle(20)
