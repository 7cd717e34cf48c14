"""The exit status of a container's job, for those who look at the job and not at the container."""

import re
import shlex
import subprocess
import time

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.processes import signal_quietly
from tests.harness.site import Site
from tests.harness.wait import wait_until

as_user = pytest.mark.parametrize("site", ["slurm-user"], indirect=True)


def of(life: Life) -> str:
    """The number of a container's job."""
    return str(life.state()["annotations"]["org.scrun.job_id"])


def shown(job: str) -> dict[str, str]:
    """What `scontrol show job` says of it."""
    text = cluster.slurm("scontrol", "show", "job", job)
    return dict(re.findall(r"(\w+)=(\S*)", text))


def ended(job: str) -> tuple[str, str]:
    """State and exit code of a job, once it has ended."""
    wait_until("its end", lambda: shown(job)["JobState"] in ("COMPLETED", "FAILED", "CANCELLED"))
    found = shown(job)
    return found["JobState"], found["ExitCode"]


@pytest.mark.parametrize("site", ["slurm-user", "slurm-root"], indirect=True)
@pytest.mark.parametrize(
    ("script", "status", "job_ends"),
    [
        ("exit 0", 0, ("COMPLETED", "0:0")),
        ("exit 7", 7, ("FAILED", "7:0")),
        ("kill -9 $$", 137, ("FAILED", "137:0")),  # as Slurm's own scrun has it
    ],
)
def test_the_job_ends_as_its_container(
    site: Site, script: str, status: int, job_ends: tuple[str, str]
) -> None:
    # pid 1 of a container cannot kill itself
    life = site.life("sh", "-c", f"sh -c {shlex.quote(script)}; exit $?").created()
    job = of(life)
    assert life.start().wait() == status
    assert ended(job) == job_ends


@as_user
def test_a_container_that_was_killed(site: Site) -> None:
    life = site.life("sleep", "600").created().start()
    job = of(life)
    life.kill("KILL")
    assert life.wait() == 137
    assert ended(job) == ("FAILED", "137:0")


@as_user
def test_a_container_that_never_started(site: Site) -> None:
    life = site.life("true").created()
    job = of(life)
    life.run("delete", "--force")
    assert ended(job) == ("FAILED", "137:0")


def test_a_container_whose_supervisor_died(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    life = site.life("sleep", "600").created().start()
    life.wait_for("running")
    job = of(life)
    (supervisor,) = site.supervisors()
    signal_quietly(supervisor)
    state, code = ended(job)
    assert state in ("FAILED", "CANCELLED")
    assert code != "0:0"


def submitted(site: Site, job: str, condition: str) -> str:
    """Submit a job that depends on another one."""
    command = [*site.user.prefix, "sbatch", "--parsable", f"--dependency={condition}:{job}"]
    command += ["--output=/dev/null", "--chdir=/", "--job-name", site.base.name, "--wrap", "true"]
    done = subprocess.run(
        command, env=site.environment, check=True, capture_output=True, text=True, timeout=20
    )
    return done.stdout.strip()


@as_user
@pytest.mark.parametrize(("script", "runs"), [("true", "afterok"), ("exit 7", "afternotok")])
def test_jobs_that_depend_on_it(site: Site, script: str, runs: str) -> None:
    life = site.life("sh", "-c", f"sleep 1; {script}").created().start()
    job = of(life)
    conditions = ("afterok", "afternotok")
    found = {condition: submitted(site, job, condition) for condition in conditions}
    life.wait()
    try:
        wait_until("it runs", lambda: shown(found[runs])["JobState"] == "COMPLETED", 90)
        (other,) = set(conditions) - {runs}
        time.sleep(1)
        assert shown(found[other])["Reason"] in ("DependencyNeverSatisfied", "Dependency")
        assert shown(found[other])["JobState"] == "PENDING"
    finally:
        cluster.cancel_all(site.user, site.base.name)


@as_user
def test_where_the_job_was_submitted(site: Site) -> None:
    life = site.life("true").created()
    found = shown(of(life))
    assert found["WorkDir"] == str(site.base)
    life.start().wait()
