"""Where containers are called in a job, and things are not as they should be."""

import shlex
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.nightly import nightly
from tests.harness.program import run_program
from tests.harness.site import Site
from tests.integration.slurm.test_place import submit

HOST = ("/usr", "/bin", "/lib", "/lib64", "/etc", "/run")


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site("slurm-user", settings="idle_timeout = 2\n")


def run(site: Site, *words: str) -> str:
    """A call of scrun for a batch script."""
    return shlex.join([*site.command, "run", *words])


@pytest.mark.nightly
def test_an_environment_of_two_megabytes(site: Site) -> None:
    """Almost the most that a process may have; what a container may have is a bit less."""
    of_all = run(site, "--all-env", str(site.rootfs))
    lines = [
        "value=$(head -c 120000 /dev/zero | tr '\\0' x)",
        "for number in {1..11}; do export BIG_$number=$value; done",
        "count='env | grep -c ^BIG_'",
        f'{of_all} sh -c "$count"',
        f'srun -n1 {of_all} sh -c "$count"',
        "for number in {12..16}; do export BIG_$number=$value; done",
        f'{run(site, str(site.rootfs))} sh -c "$count"',
        f'{of_all} sh -c "$count" 2>&1 | grep -c "is longer than 1500000 bytes together"',
    ]
    said = submit(site, "-n1", "\n".join(lines)).splitlines()
    assert [line for line in said if line.isdigit()] == ["11", "11", "0", "1"], said


@pytest.mark.parametrize("of", ["one that is over", "another user"])
def test_a_job_that_is_not_ours(site: Site, of: str) -> None:
    if of == "one that is over":
        submit(site, "-n1", 'echo "$SLURM_JOB_ID" >number')
        number = (site.base / "b" / "number").read_text().strip()
    else:
        words = ("--parsable", "--output=/dev/null", "--chdir=/", "--wrap=sleep 100")
        number = cluster.slurm("sbatch", *words).strip()
    try:
        done = site.run(
            "run", str(site.rootfs), "true", environment={"SLURM_JOB_ID": number}, timeout=60
        )
        assert done.returncode not in (0, 122), done.stderr
        assert number in done.stderr
        assert "Traceback" not in done.stderr
        assert site.must("list", "--quiet") == ""
    finally:
        if of != "one that is over":
            cluster.slurm("scancel", number)


def test_without_variables(site: Site) -> None:
    """srun passes none on to its program, not even a PATH; Slurm's are there."""
    show = "echo $SLURM_PROCID of $SLURM_NTASKS"
    lines = [
        f"srun --export=NONE -n2 {run(site, str(site.rootfs), 'sh', '-c', show)}",
        run(site, "--ntasks=2", str(site.rootfs), "sh", "-c", show),
    ]
    settings = f"export SCRUN_CONFIG={site.base}/scrun.toml SLURM_CONF={cluster.slurm_conf()}"
    script = site.base / "b" / "calls"
    script.write_text(f"#!/bin/sh\n{settings}\n" + lines[0].partition(" -n2 ")[2])
    script.chmod(0o755)
    site.user.give(script)
    lines[0] = f"srun --export=NONE -n2 {script}"
    said = submit(site, "-n2 --export=NONE", "\n".join([settings, *lines]))
    assert sorted(said.splitlines()) == ["0 of 2"] * 2 + ["1 of 2"] * 2


@pytest.mark.parametrize("launch", ["shim", nightly("container")])
def test_a_container_that_calls_slurm(make_site: MakeSite, launch: str) -> None:
    """Its steps are those of the job, and its jobs others. Slurm takes it for its user there."""
    if launch == "container" and not cluster.has_oci_conf():
        launch = "shim"
    settings = f'idle_timeout = 2\n[slurm]\nlaunch = "{launch}"\n'
    # by crun, which oci.conf names: runc makes no container without a user 0
    site = make_site("slurm-user", settings=settings, site_commands=True)
    folder = site.base / "b"
    paths = [path for path in map(Path, HOST) if path.exists()]
    mounts = [f"--mount={path}:{path}" for path in [*paths, folder, site.rootfs]]
    inner = [
        f"export SLURM_CONF={cluster.slurm_conf()}",
        "echo the job $SLURM_JOB_ID",
        "srun -n2 --overlap sh -c 'echo a step of $SLURM_JOB_ID' </dev/null",
        f"sbatch --quiet --wait --output={folder}/another --wrap='echo job $SLURM_JOB_ID'",
        "echo $?",
    ]
    user = f"--user={site.user.uid}:{site.user.gid}"
    words = [user, "--env=PATH=/usr/bin:/bin", *mounts, str(site.rootfs), "sh", "-c"]
    said = submit(site, "-n2", run(site, *words, "; ".join(inner))).splitlines()
    job = said[0].split()[-1]
    assert said == [f"the job {job}", *[f"a step of {job}"] * 2, "0"]
    assert (folder / "another").read_text() not in ("", f"job {job}\n")


@pytest.mark.parametrize("by", [nightly("srun"), "scrun"])
def test_tasks_that_end_at_different_times(site: Site, by: str) -> None:
    """Those that are left go on, and the highest status is that of all."""
    folder = site.base / "b"
    wait = f"until [ -e {folder}/over.$((SLURM_PROCID - 1)) ]; do sleep 0.1; done"
    tell = f"echo $SLURM_PROCID >>{folder}/ends; : >{folder}/over.$SLURM_PROCID"
    first = "[ $SLURM_PROCID = 0 ]"
    script = f"{first} || {wait}; sleep 0.5; {tell}; exit $((6 - SLURM_PROCID))"
    options = [f"--mount={folder}:{folder}", *(["--ntasks=3"] if by == "scrun" else [])]
    container = run(site, *options, str(site.rootfs), "sh", "-c", script)
    command = container if by == "scrun" else f"srun -n3 {container}"
    assert submit(site, "-n3", f"{command} 2>/dev/null\necho $?") == "6\n"
    assert (folder / "ends").read_text() == "0\n1\n2\n"


@pytest.mark.nightly
def test_sixty_elements_of_an_array(site: Site) -> None:
    """All at once: each does its own work, once."""
    folder = site.base / "b"
    show = f'echo "$SLURM_ARRAY_TASK_ID $SLURM_JOB_ID" >{folder}/of.$SLURM_ARRAY_TASK_ID'
    container = run(site, f"--mount={folder}:{folder}", str(site.rootfs), "sh", "-c", show)
    script = folder / "element"
    script.write_text(f"#!/bin/sh\n{container}\n")
    words = ["--array=1-60", "--wait", f"--job-name={site.base.name}", f"--output={folder}/said"]
    done = run_program(
        [*site.user.prefix, "sbatch", *words, str(script)],
        env=site.environment, cwd=folder, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, (folder / "said").read_text()
    said = [(folder / f"of.{number}").read_text().split() for number in range(1, 61)]
    assert [int(words[0]) for words in said] == [*range(1, 61)]
    assert len({words[1] for words in said}) == 60
    site.settle(60)
