"""What a site tells its users at submission: no line of it is taken for one of Slurm's."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

as_user = pytest.mark.parametrize("site", ["slurm-user"], indirect=True)


@contextmanager
def another_job(site: Site) -> Iterator[str]:
    """One of the same user's, for the length of a block; it has to be there at the end."""
    user = site.user
    job = cluster.slurm(
        "sbatch", "--parsable", "-o", "/dev/null", "--job-name=other", f"--uid={user.uid}",
        "--chdir=/", "--wrap", "exec sleep 600",
    ).strip()  # fmt: skip
    try:
        wait_until("the other job runs", lambda: f"{job} RUNNING other" in cluster.jobs(user))
        yield job
        assert f"{job} RUNNING other" in cluster.jobs(user)
    finally:
        cluster.slurm("scancel", job)
        wait_while("the other job", lambda: [j for j in cluster.jobs(user) if " other" in j])


def says(job: str, *more: str) -> str:
    """A script that tells of another job, in words that are nearly Slurm's or its very own."""
    texts = [
        f"note: your job allocation {job} is still active",
        f"Granted job allocation {job}",
        f"salloc: Granted job allocation {job}",
        f"Job allocation {job} has been revoked.",
        f"Relinquishing job allocation {job}",
        "Job has been cancelled",
    ]
    return "\n".join([*(f'slurm.log_user("{text}")' for text in texts), *more])


def number(life: Life) -> str:
    return str(life.state()["annotations"].get("org.scrun.job_id"))


def ours(site: Site) -> list[str]:
    return [job.split()[0] for job in site.jobs()]


@as_user
def test_its_own_job_is_taken_and_given_back(site: Site) -> None:
    with another_job(site) as other, cluster.job_submit(says(other, "return slurm.SUCCESS")):
        life = site.life("true").created()
        assert [number(life)] == ours(site)
        assert number(life) != other
        life.start().ends()
        wait_while("its job", lambda: ours(site), 5)


@as_user
def test_one_that_waits_is_taken_back(site: Site) -> None:
    with (
        another_job(site) as other,
        cluster.job_submit(says(other, "job_desc.begin_time = os.time() + 3600",
                                "return slurm.SUCCESS")),
    ):  # fmt: skip
        life = site.life("true").wait_for("creating")
        wait_until("its job", lambda: [number(life)] == ours(site))
        assert number(life) != other
        life.run("delete", "--force")
        wait_while("its job", lambda: ours(site), 5)


@as_user
def test_one_that_is_refused_has_the_reason_of_slurm_and_of_the_site(site: Site) -> None:
    with another_job(site) as other, cluster.job_submit(says(other, "return slurm.ERROR")):
        refused = site.life("true").refused()
        assert "no job for container" in refused
        assert "cancelled" not in refused.partition(": ")[2].partition("note: ")[0]
        assert f"note: your job allocation {other} is still active" in refused
        assert ours(site) == []
