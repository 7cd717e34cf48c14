"""What slurmctld is asked, counted by sdiag: docs/reference/performance.md has the table."""

import time
from collections import Counter
from functools import partial

import pytest

from scrun.core.paths import LOOKED
from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.nightly import nightly
from tests.harness.sdiag import requests
from tests.harness.site import Site, whole_life
from tests.harness.wait import wait_until

pytestmark = pytest.mark.covers("promise few requests to slurmctld")

PENDING = "org.scrun.pending"
NOTHING: Counter[str] = Counter()
OF_A_JOB = Counter(
    REQUEST_RESOURCE_ALLOCATION=1,
    REQUEST_JOB_READY=1,
    REQUEST_HET_JOB_ALLOC_INFO=1,
    REQUEST_JOB_STEP_CREATE=1,
    REQUEST_COMPLETE_JOB_ALLOCATION=1,
)
OF_SQUEUE = Counter(REQUEST_FED_INFO=1, REQUEST_JOB_USER_INFO=1, REQUEST_PARTITION_INFO=1)


def patient(make_site: MakeSite, who: str = "user", slurm: str = "") -> Site:
    """A place with a supervisor that has looked already for what others have left."""
    settings = f'idle_timeout = 60\n[slurm]\nlaunch = "shim"\n{slurm}\n'
    site = make_site(f"slurm-{who}", settings=settings, create_timeout=0.5)
    whole_life(site)
    wait_until("it has looked", (site.root / LOOKED).exists)
    return site


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return patient(make_site)


def test_a_life(site: Site) -> None:
    with requests(site.user) as asked:
        whole_life(site)
    assert asked == OF_A_JOB


def test_a_running_container(site: Site) -> None:
    life = site.life("sleep", "60").created().start()
    with requests(site.user) as asked:
        life.run("exec", life.id, "true")
        life.run("state", life.id)
        life.run("ps", life.id)
        life.kill("WINCH")
        site.must("list")
    assert asked == NOTHING
    with requests(site.user) as asked:
        life.run("delete", "--force", life.id)
    assert asked == Counter(REQUEST_COMPLETE_JOB_ALLOCATION=1)


def test_containers_in_a_warm_job(make_site: MakeSite) -> None:
    """The first one's job is asked for its time limit."""
    site = patient(make_site, slurm="linger = 60")
    site.must("release")
    with requests(site.user) as asked:
        for _ in range(5):
            whole_life(site)
        site.must("release")
    assert asked == OF_A_JOB + Counter(REQUEST_JOB_INFO_SINGLE=1, REQUEST_PARTITION_INFO=1)


def test_containers_in_a_pool(site: Site) -> None:
    """Each of its jobs is asked for its end."""
    with requests(site.user) as asked:
        site.must("pool", "start", "few", "--cpus-per-task", "4", "--nodes", "2")
        wait_until("its nodes", lambda: site.must("pool", "list").count("idle") == 2)
        site.must("pool", "stop", "few")
    once = OF_A_JOB + Counter(REQUEST_JOB_INFO_SINGLE=1, REQUEST_PARTITION_INFO=1)
    assert asked == once + once
    site.must("pool", "start", "many", "--cpus-per-task", "4")
    wait_until("its node", lambda: "idle" in site.must("pool", "list"))
    with requests(site.user) as asked:
        lives = [site.life("true", environment={"SCRUN_POOL": "many"}) for _ in range(12)]
        for life in lives:
            life.created(60).start()
        for life in lives:
            assert life.wait(60) == 0
            life.delete()
        site.must("pool", "list")
    assert asked == NOTHING
    site.must("pool", "stop", "many")


def test_a_supervisor_that_starts(site: Site) -> None:
    """The first one since the machine's boot looks twice for jobs that no record has."""
    site.must("supervisor", "stop", "--all")
    with requests(site.user) as asked:
        whole_life(site)
    assert asked == OF_A_JOB
    site.must("supervisor", "stop", "--all")
    (site.root / LOOKED).unlink()
    with requests(site.user) as asked:
        whole_life(site)
        wait_until("it has looked", (site.root / LOOKED).exists)
    assert asked == OF_A_JOB + OF_SQUEUE + OF_SQUEUE


def test_doctor(site: Site) -> None:
    with requests(site.user) as asked:
        site.run("doctor", "--no-job", timeout=120)
    assert asked == Counter(REQUEST_PING=1, REQUEST_PARTITION_INFO=1, REQUEST_NODE_INFO=1)


def has_reason(life: Life) -> bool:
    return PENDING in life.state()["annotations"]


def wait_in_vain(site: Site, number: int, seconds: float) -> Counter[str]:
    """Count what is asked while jobs wait."""
    with cluster.full(site.user):
        with requests(site.user) as asked:
            began = time.monotonic()
            lives: list[Life] = [site.life("true").created() for _ in range(number)]
            for life in lives:
                wait_until("a reason", partial(has_reason, life))
            time.sleep(max(0.0, began + seconds - time.monotonic()))
        for life in lives:
            life.delete()
    assert asked.pop("REQUEST_RESOURCE_ALLOCATION") == number
    return asked


@pytest.mark.parametrize("number", [nightly(1), 12])
def test_pending_jobs(site: Site, number: int) -> None:
    asked = wait_in_vain(site, number, 14)
    assert asked.keys() == {"REQUEST_JOB_USER_INFO", "REQUEST_PARTITION_INFO"}
    assert max(asked.values()) <= 4 + (14 / 4 if number > 1 else 0)


def test_pending_jobs_of_several_supervisors(make_site: MakeSite) -> None:
    """What one was told, the others read."""
    settings = 'idle_timeout = 60\ngroup = "container"\n[slurm]\nlaunch = "shim"\n'
    site = make_site("slurm-user", settings=settings, create_timeout=0.5)
    whole_life(site)
    wait_until("one has looked", (site.root / LOOKED).exists)
    asked = wait_in_vain(site, 3, 30)
    assert asked.keys() == {"REQUEST_JOB_USER_INFO", "REQUEST_PARTITION_INFO"}
    assert max(asked.values()) <= 8
    assert not (site.root / "@queue").exists()


def test_pending_jobs_of_root(make_site: MakeSite) -> None:
    """squeue would fetch all jobs of the cluster for it."""
    asked = wait_in_vain(patient(make_site, "root"), 2, 5)
    assert "REQUEST_JOB_INFO" not in asked
