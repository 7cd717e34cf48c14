"""A job that waits for its next container (`[slurm] linger`)."""

import json
import os
import signal
import time

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.nightly import nightly
from tests.harness.podman import RUN, Podman
from tests.harness.processes import shims_of, signal_quietly
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

LINGER = 4.0
LAUNCHES = ["shim", nightly("container", marks=[pytest.mark.oci_conf])]


def patient(make_site: MakeSite, launch: str, linger: float = 60, who: str = "user") -> Site:
    settings = f'idle_timeout = 20\n[slurm]\nlinger = {linger}\nlaunch = "{launch}"\n'
    return make_site(f"slurm-{who}", settings=settings)


@pytest.fixture(params=["shim", nightly("container", marks=[pytest.mark.oci_conf])])
def site(request: pytest.FixtureRequest, make_site: MakeSite) -> Site:
    """A place of a user's where jobs wait for longer than a test takes."""
    return patient(make_site, request.param)


def job_of(life: Life) -> str:
    found: str = life.state()["annotations"]["org.scrun.job_id"]
    return found


def whole(
    site: Site, script: str = "true", status: int = 0, asking: dict[str, str] | None = None
) -> str:
    """Run a container from `create` to `delete`; return its job."""
    life = site.shell(script, environment=asking).created()
    job = job_of(life)
    life.start().ends(status)
    return job


def waiting(site: Site) -> list[str]:
    return site.must("list", "--jobs", "--quiet").split()


def in_queue(site: Site) -> list[str]:
    return [job.split()[0] for job in cluster.jobs(site.user, site.base.name)]


def released(site: Site) -> None:
    """Release what waits, for the end of a test."""
    site.must("release")
    wait_while("jobs", lambda: cluster.jobs(site.user, site.base.name))


def test_the_next_container_gets_the_job(site: Site) -> None:
    first = whole(site)
    [listed] = json.loads(site.must("list", "--jobs", "--format", "json"))
    assert (listed["job_id"], listed["nodes"][:4]) == (first, "node")
    assert 50 < listed["seconds"] <= 60
    assert f"--job-name={site.base.name}" in listed["options"]
    head, row = site.must("list", "--jobs").splitlines()
    assert head.split() == ["JOB", "NODES", "WAITS", "OPTIONS"]
    assert row.split()[0] == first
    # whatever the program's own status is
    assert whole(site, "exit 7", 7) == first
    life = site.shell("test $SLURM_JOB_ID && echo $SLURM_SUBMIT_DIR; cat", stdin="pipe").created()
    assert (job_of(life), waiting(site)) == (first, [])
    os.write(life.start().stdin, b"typed\n")
    life.close_stdin()
    life.ends(says=f"{site.base}\ntyped\n")
    assert waiting(site) == [first]
    assert "was waiting for a container" not in site.must("list")
    released(site)


def test_what_one_container_leaves_the_next_does_not_find(site: Site) -> None:
    """Neither its processes nor its variables."""
    script = "sleep 600 & echo $MINE >/dev/null; touch /dev/shm/left; exit 0"
    first = whole(site, script, asking={"SCRUN_OPEN_MODE": "append"})
    look = "ls /dev/shm; ps | grep -c '[s]leep 600'; env | grep -c OPEN_MODE"
    life = site.shell(look).created()
    assert job_of(life) == first
    life.start().wait()
    assert life.output() == "0\n0\n"
    life.delete()
    released(site)


def test_other_requests_get_other_jobs(site: Site) -> None:
    requests: list[dict[str, str]] = [
        {},
        {"SCRUN_PARTITION": "test"},
        {"SCRUN_MEM_PER_NODE": "60"},
        {"SCRUN_OVERCOMMIT": "yes"},
        {"SCRUN_TIMELIMIT": "5"},
        {"SCRUN_TIMELIMIT": "5"},  # less than the five minutes is left of the first one
    ]
    jobs = [whole(site, asking=asking) for asking in requests]
    assert len({*jobs}) == 6
    assert whole(site) == jobs[0]
    assert whole(site, asking={"SCRUN_PARTITION": "test"}) == jobs[1]
    assert sorted(waiting(site)) == sorted(jobs)
    site.must("release")


def test_a_limit_that_slurm_has_rounded_up_is_enough(site: Site) -> None:
    jobs = {whole(site, asking={"SCRUN_TIMELIMIT": "4:30"}) for _ in range(2)}
    assert len(jobs) == 1
    released(site)


def test_five_at_once_and_one_job(site: Site) -> None:
    first = whole(site)
    lives = [site.shell("sleep 0.5") for _ in range(5)]
    jobs = {job_of(life.created()) for life in lives}
    assert len(jobs) == 5
    assert first in jobs
    for life in lives:
        life.start()
    for life in lives:
        life.ends()
    assert {*waiting(site)} == jobs
    released(site)


@pytest.mark.parametrize("launch", LAUNCHES)
def test_it_is_released_after_its_time(make_site: MakeSite, launch: str) -> None:
    site = patient(make_site, launch, LINGER)
    began = time.monotonic()
    job = whole(site)
    wait_while("the job", lambda: cluster.jobs(site.user, site.base.name), LINGER + 15)
    assert time.monotonic() - began > LINGER
    assert waiting(site) == []
    state = cluster.slurm("scontrol", "show", "job", job)
    assert "JobState=COMPLETED" in state
    assert whole(site) != job


@pytest.mark.parametrize("which", [nightly("all"), "one"])
def test_release(site: Site, which: str) -> None:
    jobs = [whole(site), whole(site, asking={"SCRUN_PARTITION": "test"})]
    said = site.fails("release", "999999")
    assert said == ("scrun: job 999999 does not wait for a container: see 'scrun list --jobs'\n")
    if which == "all":
        assert sorted(site.must("release").split()) == sorted(jobs)
        assert waiting(site) == []
        assert site.must("release") == ""
    else:
        assert site.must("release", jobs[0]).split() == jobs[:1]
        assert waiting(site) == jobs[1:]
        # squeue lists a job that is ending, too
        wait_until("the end of the job", lambda: in_queue(site) == jobs[1:])
    released(site)


def test_a_job_that_is_cancelled_while_it_waits(site: Site) -> None:
    first = whole(site)
    cluster.slurm("scancel", first)
    wait_while("the job", lambda: waiting(site))
    assert whole(site) != first
    released(site)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_supervisor(site: Site, number: int) -> None:
    whole(site)
    [supervisor] = site.supervisors()
    signal_quietly(supervisor, number)
    wait_while("the supervisor", site.supervisors, 10)
    wait_while("the job", lambda: cluster.jobs(site.user, site.base.name), 10)
    assert waiting(site) == []


@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_supervisor_stays_while_a_job_waits(make_site: MakeSite, launch: str) -> None:
    settings = f'idle_timeout = 0\n[slurm]\nlinger = {LINGER}\nlaunch = "{launch}"\n'
    site = make_site("slurm-user", settings=settings)
    first = whole(site)
    time.sleep(1)
    assert whole(site) == first
    wait_while("the supervisor", site.supervisors, LINGER + 15)


@pytest.mark.parametrize("started", [True, nightly(False)])
def test_a_container_that_was_deleted_gives_its_job_back(site: Site, *, started: bool) -> None:
    life = site.shell("echo up; sleep 600").created()
    if started:
        life.start().says("up")
    life.delete()
    assert waiting(site) == []
    wait_while("the job", lambda: cluster.jobs(site.user, site.base.name), 15)


def test_a_step_that_was_cancelled_gives_the_job_back(site: Site) -> None:
    life = site.shell("echo up; sleep 600").created().start().says("up")
    cluster.slurm("scancel", f"{job_of(life)}.0")
    assert life.wait() != 0
    life.delete()
    assert waiting(site) == []
    wait_while("the job", lambda: cluster.jobs(site.user, site.base.name), 15)


def shim(job: str) -> int:
    [pid] = shims_of(job)
    return pid


def test_the_shim_waits_with_its_job(make_site: MakeSite) -> None:
    site = patient(make_site, "shim")
    job = whole(site, "sleep 600 & exit 3", 3)
    first = shim(job)
    assert whole(site) == job
    assert shim(job) == first
    # what a container may notice of the step
    assert whole(site, asking={"SCRUN_EPILOG": "/bin/true"}) == job
    other = shim(job)
    assert other != first
    signal_quietly(other, signal.SIGKILL)
    wait_while("the shim", lambda: os.path.exists(f"/proc/{other}"))
    assert whole(site, "exit 4", 4, asking={"SCRUN_EPILOG": "/bin/true"}) == job
    last = shim(job)
    released(site)
    wait_while("the shim", lambda: os.path.exists(f"/proc/{last}"))


def test_a_node_that_fails(site: Site) -> None:
    first = whole(site)
    node = cluster.node_of(first)
    cluster.slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    try:
        wait_while("the job", lambda: waiting(site), 15)
    finally:
        cluster.resume(node)
    assert whole(site) != first
    released(site)


def test_nothing_waits_by_itself(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    whole(site)
    assert waiting(site) == []
    assert site.must("list", "--jobs").split() == ["JOB", "NODES", "WAITS", "OPTIONS"]
    assert json.loads(site.must("list", "--jobs", "--format", "json")) == []


@pytest.mark.covers("podman run")
def test_podman(make_site: MakeSite) -> None:
    """The first container has a supervisor of its own, below conmon, and leaves no job."""
    site = make_site("slurm-user")
    with Podman(site, settings="linger = 60\n") as podman:
        command = (*RUN, "--rm", "busybox", "sh", "-c", "echo $SLURM_JOB_ID")
        jobs = [podman.must(*command) for _ in range(2)]
        wait_while("the supervisors of one", lambda: len(site.supervisors()) > 1)
        jobs += [podman.must(*command) for _ in range(3)]
        assert len({*jobs[2:]}) == 1
        assert site.must("--root", f"{site.base}/x/scrun", "release") == jobs[-1]
