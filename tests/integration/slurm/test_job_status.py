"""The exit status of a container's job, for those who look at the job and not at the container."""

import re
import shlex
import time

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.program import output_of
from tests.harness.site import Site
from tests.harness.versions import slurm_version
from tests.harness.wait import wait_until

as_user = pytest.mark.parametrize("site", ["slurm-user"], indirect=True)


def shown(job: str) -> dict[str, str]:
    """What `scontrol show job` says of it."""
    text = cluster.slurm("scontrol", "show", "job", job)
    return dict(re.findall(r"(\w+)=(\S*)", text))


def ended(job: str) -> tuple[str, str]:
    """State and exit code of a job, once it has ended."""
    wait_until("its end", lambda: shown(job)["JobState"] in ("COMPLETED", "FAILED", "CANCELLED"))
    found = shown(job)
    return found["JobState"], found["ExitCode"]


@pytest.mark.every_launch
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
    job = life.job_id
    assert life.start().wait() == status
    assert ended(job) == job_ends


@pytest.mark.every_launch
@as_user
def test_a_container_that_was_killed(site: Site) -> None:
    life = site.life("sleep", "600").created().start()
    job = life.job_id
    life.kill("KILL")
    assert life.wait() == 137
    assert ended(job) == ("FAILED", "137:0")


@as_user
def test_a_container_that_never_started(site: Site) -> None:
    life = site.life("true").created()
    job = life.job_id
    life.run("delete", "--force")
    assert ended(job) == ("FAILED", "137:0")


def test_a_container_whose_supervisor_died(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    life = site.life("sleep", "600").created().start().wait_for("running")
    job = life.job_id
    site.kill_supervisors()
    state, code = ended(job)
    assert state in ("FAILED", "CANCELLED")
    assert code != "0:0"


def submitted(site: Site, job: str, condition: str) -> str:
    """Submit a job that depends on another one."""
    command = [*site.user.prefix, "sbatch", "--parsable", f"--dependency={condition}:{job}"]
    command += ["--output=/dev/null", "--chdir=/", "--job-name", site.base.name, "--wrap", "true"]
    return output_of(command, env=site.environment).strip()


@as_user
@pytest.mark.parametrize(("script", "runs"), [("true", "afterok"), ("exit 7", "afternotok")])
def test_jobs_that_depend_on_it(site: Site, script: str, runs: str) -> None:
    life = site.life("sh", "-c", f"sleep 1; {script}").created().start()
    job = life.job_id
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
    assert shown(life.job_id)["WorkDir"] == str(site.base)
    life.start().wait()


@as_user
def test_the_job_has_the_containers_id(site: Site) -> None:
    with cluster.full(site.user):
        life = site.life("true").wait_for("creating")
        wait_until("its job", lambda: "org.scrun.job_id" in life.state()["annotations"])
        theirs = life.id if slurm_version().job_container_ids else None
        assert shown(life.job_id).get("ContainerID") == theirs
    life.created().start()
    assert life.wait() == 0


VARIABLES = ("SLURM_JOB_NUM_NODES", "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST", "SLURM_CLUSTER_NAME")


@pytest.mark.every_launch
@as_user
def test_the_jobs_variables_are_in_the_container(site: Site) -> None:
    life = site.life("env").created().start()
    assert life.wait() == 0
    found = dict(line.split("=", 1) for line in life.output().splitlines() if "=" in line)
    assert found["SLURM_JOB_NUM_NODES"] == "1"
    assert found["SLURM_SUBMIT_DIR"] == str(site.base)
    assert set(VARIABLES) <= found.keys()


@as_user
def test_options_of_slurms_tools_in_the_callers_environment(site: Site) -> None:
    """They are for another job: the one that the caller is in."""
    names = ("SLURM", "SALLOC", "SBATCH", "SRUN", "SQUEUE")
    environment = {f"{name}_PARTITION": "nowhere" for name in names}
    environment |= {"SLURM_NTASKS": "99", "SALLOC_CONSTRAINT": "no", "SCANCEL_INTERACTIVE": "1"}
    life = site.life("true", environment=environment).created()
    life.start()
    assert life.wait() == 0


@as_user
def test_a_directory_that_is_gone(site: Site) -> None:
    life = site.life("true", environment={"SCRUN_WORKING_DIR": "/nowhere"})
    assert "/nowhere" in life.refused()


# Suspended by an administrator


@as_user
def test_a_job_that_is_suspended(site: Site) -> None:
    script = "trap 'echo told' USR1; echo up; for i in 1 2 3 4 5 6; do sleep 0.5; done; echo down"
    life = site.shell(script).created().start().says("up\n")
    cluster.slurm("scontrol", "suspend", life.job_id)
    wait_until("it is known", lambda: life.status == "paused")
    began = time.monotonic()
    for command in (("exec",), ("pause",), ("ps",), ("events", "--stats")):
        words = ("true",) if command == ("exec",) else ()
        done = site.run(*command, life.id, *words)
        assert done.returncode != 0
        assert "has suspended its job" in done.stderr
    assert time.monotonic() - began < 8
    by_shim = life.state()["annotations"]["org.scrun.launch"] == "shim"
    done = site.run("kill", life.id, "USR1")
    assert done.returncode == 0 if by_shim else "was not delivered" in done.stderr
    cluster.slurm("scontrol", "resume", life.job_id)
    wait_until("it goes on", lambda: life.status == "running")
    if by_shim:  # it has waited there
        life.says("told\n")
    assert life.wait() == 0
    log = (site.root / life.id / "log").read_text()
    assert f"job {life.job_id} is suspended" in log
    assert f"job {life.job_id} is resumed" in log


@as_user
@pytest.mark.parametrize("tasks", ["1", pytest.param("2", marks=pytest.mark.by_shim)])
@pytest.mark.parametrize("how", ["delete --force", "kill KILL"])
def test_a_job_that_is_suspended_is_ended(site: Site, how: str, tasks: str) -> None:
    """What is stopped answers nobody: it is not asked."""
    life = (
        site.shell("echo up; sleep 600", environment={"SCRUN_NTASKS": tasks})
        .created()
        .start()
        .says("up\n" * int(tasks))
    )
    cluster.slurm("scontrol", "suspend", life.job_id)
    wait_until("it is known", lambda: life.status == "paused")
    verb, word = how.split()
    words = (verb, word, life.id) if verb == "delete" else (verb, life.id, word)
    began = time.monotonic()
    done = site.run(*words)
    assert (done.returncode, done.stdout) == (0, "")
    if verb == "kill":
        assert life.wait() == 128 + 9
    assert time.monotonic() - began < 8
    life.end()
    site.settle()


@as_user
def test_a_job_that_slurm_forgets(site: Site) -> None:
    life = site.shell("echo up; sleep 600").created().start().says("up\n")
    with cluster.without():
        cluster.forget()
    assert life.wait(60) == 122
    found = life.state()["annotations"]
    assert found["org.scrun.reason"] == "cancelled"
    assert "slurmctld has lost its state" in found["org.scrun.message"]


def test_a_job_that_slurm_forgets_while_it_waits(make_site: MakeSite) -> None:
    """salloc would wait for ever."""
    site = make_site("slurm-user", create_timeout=0.5)
    with cluster.full(site.user):
        life = site.life("true").created().start()
        wait_until("it waits", lambda: "org.scrun.pending" in life.state()["annotations"])
        with cluster.without():
            cluster.forget()
        assert life.wait(60) == 125
    assert "slurmctld has lost its state" in life.state()["annotations"]["org.scrun.message"]
