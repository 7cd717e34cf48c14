"""How many nodes and tasks the step of a container has. Pure.

A container is one task on one node unless the caller asks for more. A number of nodes without a
number of tasks gives one task on each node, as with srun; with a number of tasks alone, salloc
chooses the nodes. Slurm 22.05 runs only one container of a step on a node. Requests that cannot
work there are refused before the job is allocated, or, if the number of nodes is known only then,
before anything is staged.
"""

import re
from collections.abc import Mapping

import msgspec

from scrun.core.errors import SettingsError

NODES, TASKS, PER_NODE = "SCRUN_JOB_NUM_NODES", "SCRUN_NTASKS", "SCRUN_NTASKS_PER_NODE"
SHAPE = (NODES, TASKS)
"""The requests that become a `Layout` of the step, and are not passed to srun."""


class StepLayout(msgspec.Struct, frozen=True):
    """The numbers of tasks, each with a container, and of nodes; None leaves that to srun."""

    tasks: int = 1
    nodes: int | None = 1

    @property
    def arguments(self) -> list[str]:
        nodes = [] if self.nodes is None else [f"--nodes={self.nodes}"]
        return [*nodes, f"--ntasks={self.tasks}"]


class OneNode(msgspec.Struct, frozen=True):
    """How many tasks of a step can be containers on a node with a version of Slurm, or None."""

    limit: int | None
    version: str

    @property
    def fact(self) -> str:
        """The limit in words."""
        count = "one container" if self.limit == 1 else f"{self.limit} containers"
        return f"Slurm {self.version} runs {count} of a job on each node"


def nodes_of_salloc(wanted: Mapping[str, str]) -> list[str]:
    """Return the option of salloc for one node, unless the caller decides about nodes.

    salloc refuses a number that is smaller than its list of nodes ("invalid number of nodes").
    """
    deciding = (NODES, TASKS, "SCRUN_JOB_NODELIST")
    return [] if any(wanted.get(variable) for variable in deciding) else ["--nodes=1"]


def check(wanted: Mapping[str, str], one: OneNode) -> None:
    """Refuse requests that are known to fail with this version, before there is a job."""
    tasks, per_node = _number(wanted, TASKS), _number(wanted, PER_NODE)
    if one.limit is None:
        return
    if per_node is not None and per_node > one.limit:
        raise SettingsError(f"{PER_NODE}={per_node}: {one.fact}; lower it")
    span = _span(wanted)
    if tasks is not None and span is not None and tasks > span[1] * one.limit:
        raise SettingsError(
            f"{TASKS}={tasks}: {one.fact}, and {NODES} is {wanted[NODES]}; set it to "
            f"{_needed(tasks, one.limit)}"
        )


def layout_of_own_job(
    wanted: Mapping[str, str], job: Mapping[str, str], one: OneNode
) -> StepLayout:
    """Return the layout of a step that fills the container's own job, if that is large enough."""
    granted = _nodes(job) or 1
    each = _number(wanted, PER_NODE) or 1
    # salloc reports a number of tasks that follows from other options, such as one per GPU
    tasks = _number(wanted, TASKS) or _number(job, "SLURM_NTASKS") or granted * each
    if one.limit is not None and tasks > granted * one.limit:
        raise SettingsError(
            f"{tasks} tasks: {one.fact}, and job {job.get('SLURM_JOB_ID')} has "
            f"{_nodes_of(granted)}: set {NODES} to {_needed(tasks, one.limit)}"
        )
    return StepLayout(tasks, min(granted, tasks))


def layout_within(wanted: Mapping[str, str], job: Mapping[str, str], one: OneNode) -> StepLayout:
    """Return the layout of a step in an existing job, which may be larger.

    Requests that would shape a job have no effect. The job's SLURM_* variables in the caller's
    environment may be only its id. Raises SettingsError if the job is too small.
    """
    there = _nodes(job)
    name = f"job {job.get('SLURM_JOB_ID')}"
    span = _span(wanted)
    if span is None and wanted.get(NODES):
        raise SettingsError(f"{NODES}={wanted[NODES]}: within {name} it has to be a number")
    least, most = span or (1, None)
    tasks = _number(wanted, TASKS)
    if there is not None and least > there:
        raise SettingsError(f"{NODES}={wanted[NODES]}: {name} has {_nodes_of(there)}; lower it")
    if most is not None:
        nodes = most if there is None else min(most, there)
        tasks = tasks or nodes * (_number(wanted, PER_NODE) or 1)
    else:
        tasks = tasks or _number(wanted, PER_NODE) or 1
        if one.limit is None:
            if not wanted.get(TASKS):
                return StepLayout(tasks, 1)
            # on all of them, as by srun, which takes SLURM_JOB_NUM_NODES for a request
            return StepLayout(tasks, 1 if tasks == 1 else there and min(there, tasks))
        nodes = _needed(tasks, one.limit)
    most_tasks = None if one.limit is None else (there or nodes) * one.limit
    if most_tasks is not None and tasks > most_tasks:
        raise SettingsError(
            f"{tasks} tasks: {one.fact}, and {name} has {_nodes_of(there or nodes)}; "
            f"request at most {most_tasks}"
        )
    return StepLayout(tasks, min(nodes, tasks))


def first_node(job: Mapping[str, str]) -> str:
    """Return the name of a job's first node: `a01` of `a[01-03,7],b`; "" if unknown."""
    first = re.match(r"(?:[^,[]|\[[^]]*\])*", job.get("SLURM_JOB_NODELIST", ""))
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", first[0]) if first else ""


def _nodes_of(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def _needed(tasks: int, limit: int) -> int:
    return -(-tasks // limit)


def _nodes(job: Mapping[str, str]) -> int | None:
    text = job.get("SLURM_JOB_NUM_NODES") or job.get("SLURM_NNODES") or ""
    return int(text) if re.fullmatch("[1-9][0-9]{0,8}", text) else None


def _span(wanted: Mapping[str, str]) -> tuple[int, int] | None:
    """Parse a number of nodes, or a range; None for no text, or for another form of Slurm's."""
    found = re.fullmatch("([1-9][0-9]{0,8})(?:-([1-9][0-9]{0,8}))?", wanted.get(NODES, ""))
    return (int(found[1]), int(found[2] or found[1])) if found else None


def _number(values: Mapping[str, str], variable: str) -> int | None:
    text = values.get(variable)
    if not text:
        return None
    if not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise SettingsError(f"{variable}={text}: not a number of 1 or more")
    return int(text)
