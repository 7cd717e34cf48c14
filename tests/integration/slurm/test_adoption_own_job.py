"""A container in a job of the caller's own outlives its supervisor; the job stays the caller's."""

from random import Random

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.adoption import (
    COUNT,
    UNTIL_TOLD,
    adoptions,
    end,
    kill_now_and_then,
    kill_supervisor,
    numbers,
    output,
)
from tests.harness.life import Life
from tests.harness.site import Site
from tests.harness.wait import wait_until

pytestmark = pytest.mark.by_shim


def in_job(site: Site, job: str, script: str) -> Life:
    environment = {"SLURM_JOB_ID": job}
    return site.shell(script, environment=environment).created(60).start(60)


def test_two_of_them(make_site: MakeSite) -> None:
    """Each has a shim of its own."""
    site = make_site("slurm-user")
    with cluster.callers_job(site.user) as job:
        lives = [in_job(site, job, UNTIL_TOLD).says("up", 30) for _ in range(2)]
        kill_supervisor(site)
        wait_until("they are adopted", lambda: [adoptions(one) for one in lives] == [1, 1], 20)
        kill_supervisor(site)
        wait_until("once more", lambda: [adoptions(one) for one in lives] == [2, 2], 20)
        assert site.must("exec", lives[0].id, "echo", "in it") == "in it\n"
        for life in lives:
            life.kill("USR1")
            assert life.wait(20) == 7
            assert life.state()["annotations"]["org.scrun.job_id"] == job
            life.delete(60)
        assert [known.split()[0] for known in cluster.jobs(site.user, "callers")] == [job]
    site.settle(20)


def test_no_byte_is_lost_or_doubled(make_site: MakeSite, dice: Random) -> None:
    site = make_site("slurm-user")
    with cluster.callers_job(site.user) as job:
        life = in_job(site, job, COUNT.format(200_000))
        kill_now_and_then(site, dice, 4)
        assert life.wait(90) == 7
        assert output(life) == numbers(200_000)
        life.delete(60)
    site.settle(20)


def test_the_job_ends_meanwhile(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    with cluster.callers_job(site.user) as job:
        lives = [in_job(site, job, UNTIL_TOLD).says("up", 30)]
        kill_supervisor(site)
        lives += [in_job(site, job, UNTIL_TOLD).says("up", 30)]
    for life in lives:  # the first as the other one, which was not adopted
        assert life.wait(60) == 125
        life.complains("CANCELLED", 20)
    end(*lives)
