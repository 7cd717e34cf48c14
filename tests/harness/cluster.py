"""The Slurm cluster of the tests."""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests import CHECKOUT
from tests.harness.changes import Change, ChangedFile
from tests.harness.program import run_program
from tests.harness.users import PATH, User
from tests.harness.wait import wait_until, wait_while

_TOOL = CHECKOUT / "tools" / "slurm-cluster"
_changed: dict[Path, ChangedFile] = {}


def slurm_conf() -> str:
    """The slurm.conf of a cluster that `tools/slurm-cluster` brought up."""
    conf = os.environ.get("SLURM_CONF")
    assert conf, "SLURM_CONF is not set: tools/test brings a cluster up"
    return conf


def has_oci_conf() -> bool:
    """Whether Slurm itself can make containers on the cluster (`srun --container`)."""
    return Path(slurm_conf()).with_name("oci.conf").exists()


def run(*command: str, timeout: float = 20) -> "subprocess.CompletedProcess[str]":
    """Run one of Slurm's commands as root, whatever becomes of it."""
    return run_program(command, env={"PATH": PATH, "SLURM_CONF": slurm_conf()}, timeout=timeout)


def slurm(*command: str, timeout: float = 20) -> str:
    """Run one of Slurm's commands as root, and return what it printed."""
    done = run(*command, timeout=timeout)
    assert done.returncode == 0, f"{command}: exit {done.returncode}: {done.stderr}"
    return done.stdout


def control(*arguments: str) -> None:
    """Call `tools/slurm-cluster` for the cluster of the tests."""
    directory = Path(slurm_conf()).parents[1]
    done = run_program(
        [_TOOL, *arguments], env={**os.environ, "SLURM_CLUSTER_DIR": str(directory)}
    )
    assert done.returncode == 0, f"slurm-cluster {arguments}: {done.stderr}"


def jobs(user: User, name: str | None = None) -> list[str]:
    """The jobs of a user, or those with one name: number, state and name of each."""
    named = [] if name is None else ["--name", name]
    return slurm("squeue", "-h", "-u", user.name, *named, "-o", "%i %T %j").splitlines()


def cancel_all(user: User, name: str) -> None:
    """Cancel all jobs of a user that have a name."""
    if jobs(user, name):
        slurm("scancel", "--user", user.name, "--name", name)
        wait_until("jobs cancelled", lambda: not jobs(user, name))


def node_of(job: str) -> str:
    """The node of a running job that has one."""
    return slurm("squeue", "-h", "-j", job, "-o", "%N").strip()


def resume(node: str) -> None:
    """Make a node usable that was set down, unless it has come back by itself."""

    def usable() -> bool:
        state = slurm("sinfo", "-h", "-n", node, "-o", "%t").strip()
        if state.startswith("down"):
            slurm("scontrol", "update", f"NodeName={node}", "State=RESUME")
        return state in ("idle", "mix", "alloc")

    wait_until(f"{node} is usable", usable)


@contextmanager
def full(user: User) -> Iterator[None]:
    """A cluster on which every further job has to wait."""
    # no batch job: one that is cancelled while a loaded node launches it drains that node
    ask = ("salloc", "--quiet", "--no-shell", "--exclusive", "-N2", "--job-name=full")
    try:
        slurm(*user.prefix, *ask, timeout=60)
        yield
    finally:
        slurm("scancel", "--user", user.name, "--name", "full")
        wait_until("the filling job is gone", lambda: not any("full" in j for j in jobs(user)))


@contextmanager
def callers_job(user: User) -> Iterator[str]:
    """A job that somebody holds in which scrun is called; its id."""
    ask = ("salloc", "--quiet", "--no-shell", "-N1", "--job-name=callers")
    slurm(*user.prefix, *ask, timeout=60)
    [job] = [known.split()[0] for known in jobs(user, "callers")]
    try:
        yield job
    finally:
        slurm("scancel", job)
        wait_while("the job", lambda: jobs(user, "callers"), 20)


@contextmanager
def gate(user: User) -> Iterator[str]:
    """A job that never runs: whose job depends on it (`afterany:JOB`) has to wait."""
    ask = ("sbatch", "--parsable", "--hold", "--job-name=gate", "--output=none", "--wrap=true")
    job = slurm(*user.prefix, *ask).strip()
    try:
        yield job
    finally:
        slurm("scancel", job)


@contextmanager
def changed(entity: str, *changes: str, back: str) -> Iterator[None]:
    """A cluster with an entity of `scontrol update` changed, and changed back."""
    slurm("scontrol", "update", entity, *changes)
    try:
        yield
    finally:
        slurm("scontrol", "update", entity, back)


def partition_down() -> AbstractContextManager[None]:
    """A cluster whose only partition takes jobs, and begins none."""
    return changed("PartitionName=test", "State=DOWN", back="State=UP")


def one_minute() -> AbstractContextManager[None]:
    """A cluster whose only partition has jobs of one minute at most."""
    return changed("PartitionName=test", "MaxTime=1", back="MaxTime=INFINITE")


def job(number: str) -> dict[str, str]:
    """What slurmctld knows about a job, as it names it."""
    words = slurm("scontrol", "-o", "show", "job", number).split()
    return dict(word.split("=", 1) for word in words if "=" in word)


@contextmanager
def without(daemon: str = "controller") -> Iterator[None]:
    """A cluster whose slurmctld is stopped; or `munge`, so that nobody can prove who he is."""
    control(f"stop-{daemon}")
    try:
        yield
    finally:
        control(f"start-{daemon}")


def forget() -> None:
    """Take away what a stopped slurmctld has written down: it begins anew.

    With other numbers of jobs: nodes keep something of the old ones.
    """
    state = Path(slurm_conf()).parents[1] / "ctld"
    shutil.rmtree(state)
    state.mkdir(mode=0o700)
    first = re.compile(r"(?<=^FirstJobId=)\d+$", re.MULTILINE)
    changes_of("slurm.conf").change_for_good(
        lambda text: first.sub(lambda number: str(int(number[0]) + 100_000), text or "")
    )


@contextmanager
def failed(node: str) -> Iterator[None]:
    """A cluster one of whose nodes has failed."""
    control("fail", node)
    try:
        yield
    finally:
        control("heal", node)


def oci_conf() -> Path:
    """The oci.conf of the nodes, which there need not be."""
    return Path(slurm_conf()).with_name("oci.conf")


def changes_of(name: str) -> ChangedFile:
    """What tests change of a file beside the cluster's slurm.conf, or of that."""
    path = Path(slurm_conf()).with_name(name)
    return _changed.setdefault(path, ChangedFile(path))


def with_oci_conf(text: str) -> AbstractContextManager[None]:
    """A cluster on whose nodes a shim finds another oci.conf."""
    return changes_of("oci.conf").changed(lambda _: text)


def showing_home() -> AbstractContextManager[None]:
    """A cluster whose oci.conf leaves containers their $HOME; from 23.02 on it hides that."""
    return changes_of("oci.conf").changed(
        lambda text: None if text is None else text.replace("|HOME|", "|")
    )


def without_oci_conf() -> AbstractContextManager[None]:
    """A cluster on whose nodes a shim finds no oci.conf; slurmd has read it long ago."""
    return changes_of("oci.conf").changed(lambda _: None)


@contextmanager
def with_gpus(number: int) -> Iterator[None]:
    """A cluster whose nodes have GPUs: Slurm takes any device for one."""
    place = Path(slurm_conf()).parents[1]
    files = [place / f"gpu{index}" for index in range(number)]
    lines = "".join(f"Name=gpu File={file}\n" for file in files)

    def with_them(text: str | None) -> str:
        nodes = re.sub("^NodeName=.*", rf"\g<0> Gres=gpu:{number}", text or "", flags=re.MULTILINE)
        return f"{nodes}GresTypes=gpu\n"

    try:
        for file in files:
            os.mknod(file, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # /dev/null
        with changes_of("gres.conf").changed(lambda _: lines), reconfigured(with_them):
            yield
    finally:
        for file in files:
            file.unlink(missing_ok=True)


@contextmanager
def reconfigured(change: Change) -> Iterator[None]:
    """A cluster all of whose daemons have read another slurm.conf."""
    conf = changes_of("slurm.conf")
    nodes = slurm("sinfo", "-h", "-N", "-o", "%N").split()
    with _ended(nodes):
        own = conf.begin(change)
    try:
        yield
    finally:
        with _ended(nodes):
            conf.end(own)


@contextmanager
def _ended(nodes: Sequence[str]) -> Iterator[None]:
    """No cluster, while the block runs."""
    for node in nodes:
        control("fail", node)
    control("stop-controller")
    try:
        yield
    finally:
        environment = {**os.environ, "SLURM_CLUSTER_DIR": str(Path(slurm_conf()).parents[1])}
        # together: either waits until the nodes have found the controller
        calls = [
            subprocess.Popen([_TOOL, *words], env=environment, stdin=subprocess.DEVNULL)
            for words in (("start-controller",), *(("heal", node) for node in nodes))
        ]
        assert [call.wait(60) for call in calls] == [0] * len(calls)


@contextmanager
def job_submit(script: str) -> Iterator[None]:
    """A cluster whose slurmctld asks a script at each submission: job_submit.lua.

    Args:
        script: The body of `slurm_job_submit(job_desc, part_list, submit_uid)`.
    """
    lua = (
        f"function slurm_job_submit(job_desc, part_list, submit_uid)\n{script}\nend\n"
        "function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)\n"
        "return slurm.SUCCESS\nend\nreturn slurm.SUCCESS\n"
    )
    conf = changes_of("slurm.conf")
    with changes_of("job_submit.lua").changed(lambda _: lua):
        with without():
            own = conf.begin(lambda text: f"{text}JobSubmitPlugins=lua\n")
        try:
            yield
        finally:
            with without():
                conf.end(own)
