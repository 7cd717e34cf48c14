"""Containers in a job of the caller's are what programs of srun are there, and where.

Each job runs a program by srun and in a container, in its script and in the tasks of a step, and
what it has is compared. docs/reference/jobs.md says which differences stay, and why.
"""

import os
import pprint
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.conftest import MakeSite
from tests.harness import bound, cluster
from tests.harness.nightly import nightly
from tests.harness.program import run_program
from tests.harness.site import Site
from tests.harness.versions import slurm_version
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.shares_sites

PAGE = CHECKOUT / "docs" / "reference" / "jobs.md"
PLACES = ("program", "script", "script-container", "tasks", "tasks-container", "task")

# a file for each task: facts, and then the variables
SHOW = """\
PATH=/bin:{rootfs}/bin
exec >{out}.$1.${{SLURM_PROCID:-0}}
echo "umask=$(umask)"
echo "limits=$(ulimit -a | tr '\\n' ';')"
echo "processors=$(grep Cpus_allowed_list /proc/self/status | tr -s '\\t' ' ')"
read -r _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ niceness _ </proc/self/stat
echo "niceness=$niceness"
echo "node=$(cat /proc/sys/kernel/hostname)"
echo "group=$(cat {project}/f)"
for hierarchy in {hierarchies}; do
    place=$(grep -lx $$ $(find $hierarchy -name cgroup.procs) 2>/dev/null)
    place=${{place%/*}}
    echo "group in ${{hierarchy##*/}}=$(echo "$place" | sed 's,step_[^/]*,step,')"
    for limit in cpuset.cpus memory.limit_in_bytes; do
        for above in . .. ../..; do
            file=$place/$above/$limit
            [ ! -e "$file" ] || echo "$limit of $above=$(cat "$file")"
        done
    done
done
for device in {devices}; do
    echo "${{device##*/}}=$( (: <$device) 2>&1 | sed 's/.*: //')"
done
env | grep -e ^SLURM -e ^SRUN -e ^PMI -e ^CUDA -e ^GPU -e ^ROCR -e ^ZE_
"""

# what sbatch and srun get, and the step's own srun if that is not in the script
KINDS = {
    "plain": ("-n1", "-n1", "{}"),
    "array": ("--array=3 -n1", "-n1", "{}"),
    "tasks": ("-N2 -n4", "-N2 -n4", "{}"),
    "processors": ("-n2 -c2 --mem-per-cpu=200", "-n2 -c2", "{}"),
    "heterogeneous": ("-n1 : -n2", "-n1", "{}"),
    "GPUs": ("-N1 -n2 --gpus-per-task=1", "-n2 --gpus-per-task=1", "{}"),
    "exclusive": ("-n1 --exclusive --mem=300", "-n1", "{}"),
    "no variables": ("-n1 --export=NONE", "-n1 --export=NONE", "{}"),
    "a step in a step": ("-n2", "-n1 --overlap", "srun --overlap -n2 {}"),
    "requeued": ("-n1 --requeue", "-n1", "{}"),
}
# the same of srun and of scrun, for a container of several tasks
TASKS = {"tasks": "-n3", "processors": "-N2 -n2 -c2", "GPUs": "-n2"}
REQUEUE = 'if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then scontrol requeue $SLURM_JOB_ID; exit; fi\n'


def reasons() -> dict[str, set[str]]:
    """Read the table of the page: where something may differ, by its name."""
    found: dict[str, set[str]] = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 3 and set(where := cells[1].split(", ")) <= set(PLACES):
            assert len(cells[2]) > 10, f"{line}: has no reason"
            for name in re.findall("`([^`]+)`", cells[0]):
                found.setdefault(name, set()).update(where)
    return found


def read(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


@pytest.fixture(scope="module")
def nodes() -> Iterator[bound.Bound]:
    """A cluster that binds and limits."""
    with bound.bound() as nodes:
        yield nodes


@pytest.fixture
def project(make_site: MakeSite) -> tuple[Site, Path]:
    """A site, and a directory that only the members of the user's second group see."""
    site = make_site("slurm-user", settings="idle_timeout = 2\n")
    group = next(
        gid for gid in os.getgrouplist(site.user.name, site.user.gid) if gid != site.user.gid
    )
    folder = site.base / "project"
    folder.mkdir()
    (folder / "f").write_text("read\n")
    for path, mode in ((folder, 0o2750), (folder / "f", 0o640)):
        os.chown(path, 0, group)
        path.chmod(mode)
    return site, folder


def submit(site: Site, options: str, script: str) -> str:
    """Run a batch script to its end; return what it said."""
    file, out, done = (site.base / "b" / name for name in ("job", "said", "done"))
    file.write_text(f"#!/bin/bash\n{script}\ntouch {done}\n")
    own = [f"--job-name={site.base.name}", f"--output={out}", "--quiet"]
    words = shlex.split(options)
    at = words.index(":") if ":" in words else len(words)
    argv = ["sbatch", *own, *words[:at], *words[at:], str(file)]
    asked = run_program(
        [*site.user.prefix, *argv], env=site.environment, cwd=site.base / "b", timeout=60
    )
    assert asked.returncode == 0, asked.stderr

    hurried = 0.0

    def has_run() -> bool:
        nonlocal hurried
        for job in site.jobs():
            number = re.split("[ _]", job)[0]  # of an array, the whole
            waits = " PENDING " in job and cluster.job(number).get("Reason") == "BeginTime"
            if waits and time.monotonic() > hurried + 2:  # one that is requeued: two minutes
                cluster.slurm("scontrol", "update", f"JobId={number}", "StartTime=now")
                hurried = time.monotonic()
        return done.exists()

    wait_until("the job has run", has_run, 90)
    wait_while("the job runs", site.jobs)
    return out.read_text()


@pytest.mark.parametrize("kind", [kind if kind == "tasks" else nightly(kind) for kind in KINDS])
def test_as_a_program_of_srun(nodes: bound.Bound, project: tuple[Site, Path], kind: str) -> None:
    site, folder = project
    base, out = site.base / "b", site.base / "b" / "o"
    options, of_step, within = KINDS[kind]
    show = base / "show"
    seen = {"hierarchies": nodes.hierarchies.values(), "devices": nodes.gpus}
    show.write_text(
        SHOW.format(
            rootfs=site.rootfs,
            out=out,
            project=folder,
            **{name: " ".join(map(str, paths)) for name, paths in seen.items()},
        )
    )
    by_container = base / "container.toml"
    settings = (site.base / "scrun.toml").read_text()
    by_container.write_text(f'{settings}\n[slurm]\nlaunch = "container"\n')
    site.user.give(base)
    shown_there = [base, folder, *nodes.gpus, *nodes.hierarchies.values()]
    mounts = [f"--mount={path}:{path}" for path in shown_there]
    busybox = site.rootfs / "bin" / "busybox"

    def container(name: str, config: Path, *options: str) -> str:
        words = [site.command[0], f"--config-file={config}", *site.command[1:], "run", *options]
        return shlex.join([*words, *mounts, str(site.rootfs), "sh", str(show), name])

    def plain(name: str) -> str:
        return shlex.join([str(busybox), "sh", str(show), name])

    lines = ["umask 027", "nofile=$(ulimit -n)"]
    lines += ["ulimit -S -n $((nofile - 1))"]
    lines += [plain("program"), f"srun -N1 -n1 {plain('script')}"]
    lines.append(container("script-scrun", site.base / "scrun.toml"))
    names = {"program": ("program", "script-scrun"), "script": ("script", "script-scrun")}
    if cluster.has_oci_conf():
        lines.append(container("script-container-scrun", by_container))
        names["script-container"] = ("script", "script-container-scrun")
    if tasks := TASKS.get(kind):
        lines.append(f"srun {tasks} {plain('tasks')}")
        lines.append(container("tasks-scrun", site.base / "scrun.toml", *tasks.split()))
        names["tasks"] = ("tasks", "tasks-scrun")
        if cluster.has_oci_conf() and slurm_version().containers_per_node is None:
            lines.append(container("tasks-container-scrun", by_container, *tasks.split()))
            names["tasks-container"] = ("tasks", "tasks-container-scrun")
    for command in (plain("task"), container("task-scrun", site.base / "scrun.toml")):
        inner = f"srun {of_step} {command}"
        lines.append(inner if within == "{}" else f"srun --overlap -n1 sh -c {shlex.quote(inner)}")
    names["task"] = ("task", "task-scrun")
    said = submit(site, options, (REQUEUE if kind == "requeued" else "") + "\n".join(lines))
    page = reasons()
    shown: dict[str, tuple[str | None, str | None]] = {}
    for place, (one, other) in names.items():
        ranks = sorted(path.suffix for path in base.glob(f"o.{one}.*"))
        assert ranks, said
        assert ranks == sorted(path.suffix for path in base.glob(f"o.{other}.*")), said
        for rank in ranks:
            has, wants = read(base / f"o.{other}{rank}"), read(base / f"o.{one}{rank}")
            assert wants["group"] == "read"
            assert has["SLURM_CONTAINER_ID"].startswith("rootfs-")
            assert has["SLURM_CONTAINER"].startswith("/")
            for name in differing(wants, has):
                if not any(place in page[known] for known in page if fnmatch(name, known)):
                    shown[f"{place}{rank}: {name}"] = wants.get(name), has.get(name)
    assert not shown, pprint.pformat(shown)
    if kind == "tasks":
        assert len(list(base.glob("o.task-scrun.*"))) == 4


def test_those_of_one_task_have_their_callers_processors(
    nodes: bound.Bound, project: tuple[Site, Path]
) -> None:
    """As launchers of MPI bind their ranks; they have one supervisor."""
    site, _ = project
    scrun, image = shlex.join(site.command), site.rootfs
    lines = [
        f"taskset -c 0 {scrun} run --detach --name=first {image} sleep 1000",
        f"taskset -c 1 {scrun} run {image} grep Cpus_allowed_list /proc/self/status",
        f"{scrun} exec first grep Cpus_allowed_list /proc/self/status",
        f"{scrun} delete --force first",
    ]
    said = submit(site, "-n1 -c2", f"srun -n1 -c2 sh -c {shlex.quote('; '.join(lines))}")
    assert [line.split()[-1] for line in said.splitlines()] == ["1", "0"]


@pytest.mark.parametrize("by", [nightly("srun --container"), "scrun"])
def test_whether_tasks_know_their_ranks_by_slurm(make_site: MakeSite, by: str) -> None:
    """Those that slurmstepd of 22.05 runs in containers have the ranks that the script has."""
    if not cluster.has_oci_conf():
        return  # Slurm makes no containers here
    site = make_site("slurm-user", settings='idle_timeout = 2\n[slurm]\nlaunch = "container"\n')
    words = ("/bin/sh", "-c", "echo rank $SLURM_PROCID")
    bundle = site.bundle(site.config(*words))
    (bundle / "rootfs").symlink_to(site.rootfs)  # for slurmstepd of 22.05
    container = f"srun -N2 -n2 --container={bundle} {shlex.join(words)}"
    if by == "scrun":
        container = f"SCRUN_NTASKS=2 SCRUN_JOB_NUM_NODES=2 {shlex.join(site.command)}"
        container += f" run --bundle {bundle} {site.base.name}"
    (site.base / "b").mkdir(exist_ok=True)
    site.user.give(site.base / "b")
    said = submit(site, "-N2 -n2", container)
    one = slurm_version().containers_per_node == 1
    assert sorted(said.splitlines()) == ["rank 0", "rank 0" if one else "rank 1"]
