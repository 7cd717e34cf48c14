"""Containers that Slurm ends: for want of memory, and for a job that counts more.

The cluster of the tests has no memory to give away and preempts nothing, so these tests change
its configuration while they run.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.podman import rootless_podman
from tests.harness.site import Site
from tests.harness.wait import wait_until
from tests.integration.slurm.test_pool import in_pool, started

pytestmark = pytest.mark.covers("promise jobs that are taken away")

as_user = pytest.mark.parametrize("site", ["slurm-user"], indirect=True)

_SETTINGS = """\
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=50
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=urgent Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP
"""
_SAVES = (
    "trap 'echo saving; sleep 1; echo saved; exit 3' TERM; echo up; while :; do sleep 0.1; done"
)
# 200 MiB that stay until somebody reads them
_GREEDY = "head -c 200m /dev/zero | tail -c 200m | sleep 600"


def strict(text: str | None) -> str:
    """The slurm.conf of a cluster that has memory to give away, and preempts."""
    replaced = tuple(line.partition("=")[0] + "=" for line in _SETTINGS.splitlines()[:-1])
    kept = [line for line in (text or "").splitlines() if not line.startswith(replaced)]
    return "\n".join([*kept, _SETTINGS])


@pytest.fixture(scope="module", autouse=True)
def _strict_cluster() -> Iterator[None]:
    with cluster.reconfigured(strict):
        yield


def told(life: Life, reason: str, words: str) -> None:
    """Check what is told about an end."""
    annotations = life.state()["annotations"]
    assert annotations["org.scrun.reason"] == reason
    assert words in annotations["org.scrun.message"]
    # slurmstepd's lines begin with its name, from 26.05 on with the time
    lines = [line for line in life.errors().splitlines() if not line.startswith("[20")]
    [said] = [line for line in lines if "slurmstepd-" not in line]
    assert said == f"scrun: {annotations['org.scrun.message']}"


@pytest.mark.covers("scrun exit statuses: out of memory, preempted, cancelled and by whom")
@as_user
def test_out_of_memory(site: Site) -> None:
    environment = {"SCRUN_MEM_PER_NODE": "50", "_OCI_SYNCPIPE": "3"}
    life = site.shell(_GREEDY, environment=environment).created().start()
    assert life.wait() == 137
    told(life, "out-of-memory", "out of memory")
    assert (life.bundle / "oom").exists()


def test_out_of_memory_in_a_pod(make_site: MakeSite) -> None:
    """Slurm ends the step, which is that of all members."""
    site = make_site("slurm-user", settings='idle_timeout = 20\n[slurm]\nlaunch = "shim"\n')
    lives = []
    for script in ("sleep 600", _GREEDY):
        config = site.config("sh", "-c", script)
        config["annotations"] = {"org.scrun.pod": "greedy"}
        life = site.life(config=config, environment={"SCRUN_MEM_PER_NODE": "50"})
        lives.append(life.created().start())
    assert [life.wait() for life in lives] == [137, 137]
    for life in lives:
        told(life, "out-of-memory", "out of memory")


def test_out_of_memory_in_a_pool(make_site: MakeSite) -> None:
    """Slurm ends the step, which is that of all containers on the node; the job goes on."""
    site = make_site("slurm-user", settings='idle_timeout = 20\n[slurm]\nlaunch = "shim"\n')
    job = site.must("pool", "start", "mine", "--mem", "80").split()[-1]
    wait_until("its node", lambda: "idle" in site.must("pool", "list"))
    asking = {"SCRUN_POOL": "mine", "SCRUN_OVERCOMMIT": "yes", "SCRUN_MEM_PER_NODE": "30"}
    lives = [
        site.shell(script, environment=asking).created().start()
        for script in ("sleep 600", _GREEDY)
    ]
    assert [life.wait() for life in lives] == [137, 137]
    for life in lives:
        told(life, "out-of-memory", "out of memory")
        life.delete()
    life = site.shell("exit 3", environment=asking).created().start()
    assert (life.job_id, life.wait()) == (job, 3)
    life.delete()
    site.must("pool", "stop", "mine")


def test_too_little_memory_for_the_shim(make_site: MakeSite) -> None:
    """Slurm looks every second, so the container may have been created by then."""
    site = make_site("slurm-user", settings='idle_timeout = 20\n[slurm]\nlaunch = "shim"\n')
    life = site.shell("sleep 600", environment={"SCRUN_MEM_PER_NODE": "1"})
    if life.create_status():
        assert "scrun: " in life.refused()
        return
    life.run("start")  # refused, if it comes too late
    assert life.wait() == 137
    told(life, "out-of-memory", "out of memory")


@pytest.mark.covers("scrun exit statuses: out of memory, preempted, cancelled and by whom")
@as_user
def test_killed_within_its_memory(site: Site) -> None:
    life = site.shell("kill -KILL $$; exit 137", environment={"_OCI_SYNCPIPE": "3"})
    assert life.created().start().wait() == 137
    assert life.state()["annotations"]["org.scrun.reason"] == "exited"
    assert not (life.bundle / "oom").exists()


@contextmanager
def urgent(site: Site) -> Iterator[None]:
    """A job that needs all nodes, and counts more."""
    job = cluster.slurm(
        "sbatch", "--parsable", "--exclusive", "-N2", "--partition=urgent", "--output=/dev/null",
        f"--uid={site.user.uid}", "--chdir=/", "--wrap", "exec sleep 600",
    ).strip()  # fmt: skip
    try:
        yield
    finally:
        cluster.slurm("scancel", job)
        wait_until("it is gone", lambda: not cluster.slurm("squeue", "-h", "-p", "urgent"))


@pytest.mark.covers("scrun exit statuses: out of memory, preempted, cancelled and by whom")
@as_user
def test_preempted(site: Site) -> None:
    # its node cleans up for as long as it ignores the signal; the state is COMPLETING then
    running = site.shell("trap '' TERM; echo up; while :; do sleep 1; done").created().start()
    created = site.life("true").created()
    saves = site.shell(_SAVES).created().start().says("up")
    running.says("up")
    with urgent(site):
        for life in (running, created, saves):
            assert life.wait() == 121
            told(life, "preempted", "another job preempted it")
        assert saves.output().split() == ["up", "saving", "saved"]


def test_preempted_in_a_pool(make_site: MakeSite) -> None:
    """Each of its containers is told, and those that wait for it."""
    site = make_site("slurm-user", settings='[slurm]\nlaunch = "shim"\n')
    started(site, "--cpus-per-task", "2")
    lives = [in_pool(site, "echo up; sleep 600").created().start().says("up") for _ in range(2)]
    waits = in_pool(site, "true").created().start()
    with urgent(site):
        for life in lives:
            assert life.wait(60) == 121
            told(life, "preempted", "another job preempted it")
        assert waits.wait(30) == 125
        assert "pool mine has ended: " in waits.errors()
        assert "preempted" in waits.errors()


@pytest.mark.covers("scrun exit statuses: out of memory, preempted, cancelled and by whom")
@as_user
def test_preempted_with_grace(site: Site) -> None:
    """It ends by itself before its job is taken away."""
    with cluster.changed("PartitionName=test", "GraceTime=20", back="GraceTime=0"):
        life = site.shell(_SAVES).created().start().says("up")
        with urgent(site):
            assert life.wait() == 3
            assert life.state()["annotations"]["org.scrun.reason"] == "exited"
            assert life.output().split() == ["up", "saving", "saved"]


@pytest.mark.covers("scrun exit statuses: out of memory, preempted, cancelled and by whom")
def test_podman_knows_that_memory_was_lacking() -> None:
    limits = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
    with rootless_podman() as podman:
        run = ("run", "--name", "greedy", "--network", "host", *limits)
        done = podman.run(*run, "--annotation", "slurm.mem=50", "busybox", "sh", "-c", _GREEDY)
        assert done.returncode == 137
        assert "out of memory" in done.stderr
        state = "{{.State.OOMKilled}} {{.State.ExitCode}}"
        assert podman.must("inspect", "--format", state, "greedy").split() == ["true", "137"]
