"""A slurmctld that limits how often a user may ask (rl_enable, since 23.02)."""

import re
import time
from collections.abc import Iterator

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.sdiag import requests
from tests.harness.site import Site, whole_life
from tests.harness.versions import slurm_version
from tests.harness.wait import wait_until

pytestmark = pytest.mark.covers("promise jobs that wait, and what shapes a job")

PENDING = "org.scrun.pending"
SAID = re.compile(r"(job \d+ )?pending: RateLimited \(slurmctld limits how often its user")
BUCKET, REFILL = 4, 1


@pytest.fixture(scope="module")
def _limited() -> Iterator[None]:
    """A cluster that slows a user down after a few requests; 22.05 cannot."""
    limit = f"rl_enable,rl_bucket_size={BUCKET},rl_refill_rate={REFILL}"
    line = f"SlurmctldParameters={limit}\n" if slurm_version().limits_rate else ""
    with cluster.reconfigured(lambda text: f"{text}{line}"):
        yield


@pytest.fixture
def site(make_site: MakeSite, _limited: None) -> Site:
    site = make_site("slurm-user", create_timeout=0.2)
    whole_life(site)
    return site


def is_slowed(life: Life) -> bool:
    if life.status == "gone":  # its `create` has just begun
        return False
    return bool(life.state()["annotations"].get(PENDING) == "RateLimited")


def use_up(site: Site) -> None:
    """Ask as much as is granted at once."""
    for _ in range(BUCKET // 2):
        cluster.slurm(*site.user.prefix, "sinfo")  # two requests


def log_of(life: Life) -> str:
    return (life.site.root / life.id / "log").read_text()


@pytest.mark.parametrize("number", [4])
def test_who_is_slowed_down_is_told(site: Site, number: int) -> None:
    """Each of the containers needs more than slurmctld grants at once."""
    use_up(site)
    lives = [site.life("true") for _ in range(number)]
    if slurm_version().limits_rate:
        wait_until("it is told", lambda: any(map(is_slowed, lives)))
        assert "RateLimited" in site.must("list")
    for life in lives:
        life.created(60)
    for life in lives:
        assert life.start(60).wait(60) == 0
        assert PENDING not in life.state()["annotations"]
    logs, errors = ([text(life) for life in lives] for text in (log_of, Life.errors))
    told = [len(SAID.findall(text)) for text in (*logs, *errors)]
    assert any(told) is slurm_version().limits_rate
    assert max(told) <= 1
    for life in lives:
        life.delete(60)


@pytest.mark.nightly
def test_containers_in_a_pool_are_not(site: Site) -> None:
    """With jobs of their own they would take a minute."""
    site.must("pool", "start", "mine", "--cpus-per-task", "4")
    wait_until("its node", lambda: "idle" in site.must("pool", "list"), 60)
    use_up(site)
    began = time.monotonic()
    lives = [site.life("true", environment={"SCRUN_POOL": "mine"}) for _ in range(12)]
    for life in lives:
        life.created(60).start(60)
    assert [life.wait(60) for life in lives] == [0] * len(lives)
    assert time.monotonic() - began < 20
    assert not any("RateLimited" in log_of(life) for life in lives)
    for life in lives:
        life.delete(60)
    site.must("pool", "stop", "mine", timeout=60)


def test_doctor_finds_slurmctld(site: Site) -> None:
    """`scontrol ping` says DOWN of one that limits its user."""
    use_up(site)
    text = site.must("doctor", "--no-job", timeout=60)
    assert "ok    slurmctld: " in text
    assert ("begin in an hour (rl_enable)" in text) is slurm_version().limits_rate


def test_pending_jobs_leave_the_rest_to_the_user(site: Site) -> None:
    """Their reasons come late, as nobody asks for a minute."""
    with cluster.full(site.user):
        use_up(site)
        lives = [site.life("true").created(60) for _ in range(3)]
        wait_until("they are in the queue", lambda: len(site.jobs()) == 3)
        with requests(site.user) as asked:
            time.sleep(6)
        for life in lives:
            life.delete(60)
    assert (asked["REQUEST_JOB_USER_INFO"] == 0) is slurm_version().limits_rate
