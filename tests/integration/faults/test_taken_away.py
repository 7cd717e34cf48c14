"""Containers whose job is taken away from them: cancelled, out of time, without its node."""

import time

import pytest

from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.site import Site
from tests.harness.wait import wait_until

pytestmark = pytest.mark.covers("promise jobs that are taken away")

on_slurm = pytest.mark.parametrize("site", ["slurm-root", "slurm-user"], indirect=True)
as_user = pytest.mark.parametrize("site", ["slurm-user"], indirect=True)


def begun(site: Site) -> Life:
    """A container that ignores what it can ignore."""
    life = site.shell("trap '' TERM INT HUP; echo up; while :; do sleep 1; done")
    life.created().start().says("up")
    return life


def holds(life: Life, reason: str, timeout: float = 30) -> None:
    """Wait for the end, and check what is told about it."""
    status, words = {
        "cancelled": (122, "was cancelled"),
        "time-limit": (124, "time limit"),
        "node-failure": (120, "failed"),
    }[reason]
    assert life.wait(timeout) == status
    state = life.state()
    assert state["status"] == "stopped"
    assert state["annotations"]["org.scrun.exit_status"] == str(status)
    assert state["annotations"]["org.scrun.reason"] == reason
    # slurmstepd writes into the stderr of a step that is cancelled; nothing prevents it
    [said] = [line for line in life.errors().splitlines() if "*** STEP" not in line]
    assert words in said
    assert "container not running" in life.site.fails("kill", life.id, "TERM")
    life.delete()
    assert life.status == "gone"


@pytest.mark.covers("slurm-scrun the anchor exits 0 whatever the container did")
@pytest.mark.parametrize("started", [True, False])
@on_slurm
def test_cancelled_from_outside(site: Site, started: bool) -> None:
    life = begun(site) if started else site.life("sleep", "600").created()
    cluster.slurm("scancel", life.job_id)
    holds(life, "cancelled")


@as_user
def test_cancelled_at_the_moment_of_its_start(site: Site) -> None:
    life = site.life("sleep", "600").created()
    cluster.slurm("scancel", life.job_id)
    life.run("start")  # it may be too late for that
    holds(life, "cancelled")


@on_slurm
def test_cancelled_while_pending(site: Site) -> None:
    with cluster.full(site.user):
        life = site.life("true").wait_for("creating")
        name = site.base.name
        [job] = wait_until("a job", lambda: cluster.jobs(site.user, name))
        assert "PENDING" in job
        cluster.slurm("scancel", job.split()[0])
        assert "cancel" in life.refused()
        assert life.status == "gone"


@as_user
def test_refused_by_the_cluster(site: Site) -> None:
    began = time.monotonic()
    life = site.life("true", environment={"SCRUN_PARTITION": "nowhere"})
    assert "artition" in life.refused()
    assert time.monotonic() - began < 3
    assert life.status == "gone"


@pytest.mark.timeout(240)
@as_user
def test_time_limit_and_node_failure(site: Site) -> None:
    """In one test, because Slurm takes a minute to notice the one, and half of one the other."""
    failing = site.shell("echo up; sleep 600").created().start().says("up")
    node = cluster.node_of(failing.job_id)
    [other] = {"node1", "node2"} - {node}
    there = {"SCRUN_JOB_NODELIST": node}
    elsewhere = {"SCRUN_JOB_NODELIST": other, "SCRUN_JOB_NUM_NODES": "1"}
    failing_created = site.life("sleep", "600", environment=there).created()
    limited = {"SCRUN_TIMELIMIT": "1", **elsewhere}
    created = site.life("sleep", "600", environment=limited).created()
    running = site.shell("echo up; sleep 600", environment=limited).created().start()
    unlimited = [
        site.shell("echo up; sleep 600", environment=elsewhere).created().start() for _ in range(5)
    ]
    # an end that was moved closer comes without a warning, and then salloc may not know why
    for life in unlimited:
        life.says("up")
        cluster.slurm("scontrol", "update", f"JobId={life.job_id}", "EndTime=now+2seconds")
    with cluster.failed(node):
        for life in unlimited:
            holds(life, "time-limit", 60)
        holds(failing, "node-failure", 120)
        holds(failing_created, "node-failure", 60)
        holds(running, "time-limit", 150)
        holds(created, "time-limit", 60)


@as_user
def test_start_after_the_time_limit(site: Site) -> None:
    """slurmctld begins no step of such a job, long before it notices and ends it.

    A shim's step has begun: what it starts runs until slurmctld notices.
    """
    life = site.life("true").created()
    cluster.slurm("scontrol", "update", f"JobId={life.job_id}", "EndTime=now+1seconds")
    time.sleep(2)
    life.start()
    if life.state()["annotations"]["org.scrun.launch"] == "shim":
        life.ends()
    else:
        holds(life, "time-limit", 60)


@as_user
def test_node_set_down(site: Site) -> None:
    running = site.shell("echo up; sleep 600").created().start().says("up")
    node = cluster.node_of(running.job_id)
    try:
        cluster.slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        holds(running, "node-failure")
    finally:
        cluster.resume(node)


@as_user
def test_preempted_or_requeued_is_not_success(site: Site) -> None:
    life = begun(site)
    cluster.slurm("scancel", "--signal=KILL", "--full", life.job_id)
    assert life.wait() != 0
