"""Where scrun is called, from variables that may lie and what the kernel says."""

import subprocess
import sys

import pytest

from scrun.core.place import (
    Place,
    job_of,
    job_variables,
    place,
    step_of_cgroups,
    step_of_title,
)

TASK = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3"}
SCRIPT = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}
SECOND = {"SLURM_JOB_ID_HET_GROUP_0": "7", "SLURM_JOB_ID_HET_GROUP_1": "8"}


@pytest.mark.parametrize(
    ("environment", "step", "found"),
    [
        pytest.param({}, "", Place(), id="a login node"),
        pytest.param({"SLURM_JOB_ID": "7"}, "", Place("7"), id="the shell of salloc"),
        pytest.param(SCRIPT, "7.batch", Place("7", "7.batch"), id="a script"),
        pytest.param(SCRIPT, "7.interactive", Place("7", "7.interactive"), id="salloc on a node"),
        pytest.param(TASK, "7.0", Place("7", "7.0", "3"), id="a task"),
        pytest.param({**TASK, **SECOND}, "8.0", Place("7", "8.0", "3"), id="another component"),
        pytest.param(TASK, "", Place("7"), id="ssh or cron, which inherited it"),
        pytest.param(TASK, "7.batch", Place("7", "7.batch"), id="a script that a step submitted"),
        pytest.param(TASK, "7.extern", Place("7", "7.extern"), id="ssh that Slurm adopted"),
        pytest.param(TASK, "7.1", Place("7", "7.1"), id="variables of another step"),
        pytest.param(TASK, "8.0", Place("7", "8.0"), id="variables of another job"),
        pytest.param({}, "7.0", Place("", "7.0"), id="a task without variables"),
        pytest.param({**TASK, "SLURM_PROCID": "x"}, "7.0", Place("7", "7.0"), id="no number"),
    ],
)
def test_places(environment: dict[str, str], step: str, found: Place) -> None:
    assert place(environment, step) == found
    assert job_of(environment) == found.job


def test_in_a_container_of_a_task() -> None:
    """Its containers are steps of the job, as those of a script."""
    assert place(TASK, "7.0", contained=True) == Place("7", "7.0")


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (Place("7", "", ""), ""),
        (Place("7", "7.batch", ""), "7.batch"),
        (Place("7", "7.0", "3"), "7.0.3"),
    ],
)
def test_what_ends_with_it(found: Place, name: str) -> None:
    assert found.name == name


@pytest.mark.parametrize(
    ("lines", "step"),
    [
        ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_3\n", "7.0"),
        ("9:name=systemd:/\n6:freezer:/slurm_n1/uid_1/job_7/step_batch\n0::/\n", "7.batch"),
        ("0::/system.slice/n1_slurmstepd.scope/job_7/step_extern/user/task_special\n", "7.extern"),
        ("0::/system.slice/slurmstepd.scope/system\n", ""),
        ("0::/user.slice/job_7\n", ""),
        ("0::/job_x/step_0\n", ""),
        ("0::/job_7/step_\n", ""),
        ("0::/\n", ""),
        ("", ""),
    ],
)
def test_control_groups(lines: str, step: str) -> None:
    assert step_of_cgroups(lines) == step


@pytest.mark.parametrize(
    ("title", "step"),
    [
        ("slurmstepd: [7.0]", "7.0"),
        ("slurmstepd: [7.batch] ", "7.batch"),
        ("slurmstepd: [7+1.0]", "7.0"),
        ("/usr/sbin/slurmstepd infinity", ""),
        ("slurmstepd: []", ""),
        ("", ""),
    ],
)
def test_titles(title: str, step: str) -> None:
    assert step_of_title(title) == step


def test_a_process_with_the_variables_of_a_task() -> None:
    """They do not make it one."""
    program = "from scrun.core.place import here; print(here())"
    argv = [sys.executable, "-c", program]
    said = subprocess.run(argv, env=TASK, capture_output=True, text=True, check=True).stdout
    assert said == f"{Place('7')}\n"


def test_a_heterogeneous_job() -> None:
    """It is its first component that containers go into."""
    job = {"SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2", "SLURM_NTASKS": "3"}
    of_each = {"SLURM_NTASKS_HET_GROUP_0": "1", "SLURM_NTASKS_HET_GROUP_1": "2"}
    nodes = {"SLURM_JOB_NODELIST_HET_GROUP_0": "a", "SLURM_JOB_NODELIST_HET_GROUP_1": "b"}
    found = job_variables({**job, **of_each, **nodes, "HOME": "/h", "SRUN_CPUS_PER_TASK": "2"})
    more = {"SLURM_NTASKS": "1", "SLURM_JOB_NODELIST": "a", "SRUN_CPUS_PER_TASK": "2"}
    assert found == {**job, **of_each, **nodes, **more}
