"""The pool `auto`, which starts, grows, shrinks and ends by itself."""

from collections.abc import Callable

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.adoption import PENDING, UNTIL_TOLD, adopted, kill_supervisor
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while
from tests.integration.slurm.test_pool import ends, job_of, nodes, told

AUTO = '[slurm]\nlaunch = "shim"\npool = "auto"\npool_max = 2\npool_idle = 4\n'


@pytest.fixture
def make_auto(make_site: MakeSite) -> Callable[[str], Site]:
    return lambda more: make_site("slurm-user", settings=AUTO + more)


@pytest.fixture
def site(make_auto: Callable[[str], Site]) -> Site:
    return make_auto("[slurm.pool_node]\ncpus_per_task = 2\n")


def gone(site: Site) -> None:
    wait_while("nodes", lambda: nodes(site), 30)
    wait_while("jobs", lambda: cluster.jobs(site.user, site.base.name), 30)


def test_it_grows_and_shrinks(site: Site) -> None:
    lives = [site.shell("echo up; cat", stdin="pipe").created() for _ in range(4)]
    for life in lives:
        life.start()
    jobs = [job_of(life.says("up", 60)) for life in lives]
    assert len({*jobs}) == 2
    assert sorted(jobs.count(job) for job in {*jobs}) == [2, 2]
    fifth = site.shell("cat", stdin="pipe").created().start()
    assert fifth.state()["annotations"][PENDING] == "PoolResources"
    for life in lives:
        ends(life)
    ends(fifth)
    gone(site)


def test_one_that_does_not_fit_has_its_own_job(site: Site) -> None:
    large = site.shell("cat", stdin="pipe", environment={"SCRUN_NTASKS": "2"}).created()
    log = (site.root / large.id / "log").read_text()
    assert "it has a job of its own, not pool auto: SCRUN_NTASKS=2" in log
    large.start()
    ends(large)
    asked = {"SCRUN_POOL": "auto", "SCRUN_CPUS_PER_TASK": "3"}
    said = site.shell("true", environment=asked).refused()
    assert "in pool auto: its nodes have 2 processors each" in said
    assert nodes(site) == []


@pytest.mark.nightly
def test_it_outlives_its_supervisor(site: Site) -> None:
    life = site.shell(UNTIL_TOLD).created().start().says("up")
    job = job_of(life)
    kill_supervisor(site)
    adopted(life)
    wait_until("its node", lambda: [node["job_id"] for node in nodes(site)] == [job])
    after = site.shell("cat", stdin="pipe").created().start()
    assert job_of(after) == job
    ends(after)
    told(life)
    gone(site)


def test_what_it_asks_for_is_refused(make_auto: Callable[[str], Site]) -> None:
    site = make_auto('[slurm.pool_node]\npartition = "nowhere"\n')
    life = site.shell("echo up; cat", stdin="pipe").created().start().says("up", 30)
    log = (site.root / life.id / "log").read_text()
    assert "it has a job of its own, not pool auto: " in log
    assert "nvalid partition" in log
    ends(life)
    said = site.shell("true", environment={"SCRUN_POOL": "auto"}).refused()
    assert "pool auto has ended: " in said
    assert len(said.splitlines()) == 1


def test_it_is_stopped(site: Site) -> None:
    life = site.shell("echo up; sleep 600").created().start().says("up")
    site.must("pool", "stop", "auto")
    assert life.wait() == 143
    gone(site)
    assert "pool auto starts by itself" in site.fails("pool", "start", "auto")
