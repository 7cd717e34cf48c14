"""What a script may ask for and change, by context and callback: pure.

Measured with a plugin in C that asks for everything in every callback of Slurm 22.05.8; the words
are spank_strerror(3)'s. Where the manual, spank-lua(8), allows more than Slurm does it is the
manual that counts: `setenv` in the local contexts, and `getopt` in all callbacks after the first.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from scrun.settings.spank.callbacks import LOCAL_ITEMS, TASK_ITEMS, VERSION_ITEMS

ContextName = Literal["local", "allocator", "remote", "slurmd", "job_script"]

NOT_REMOTE = "Valid only in remote context"
NOT_LOCAL = "Valid only in local or allocator context"
NOT_AVAILABLE = "Item not available from this callback"
NOT_TASK = "Not in task context"
NOT_EXECUTED = "Lookup by PID requested, but no tasks running"

_NO_VAL = 0xFFFFFFFE
_LOCAL: tuple[ContextName, ...] = ("local", "allocator")
_OF_A_TASK = (
    "slurm_spank_task_init_privileged",
    "slurm_spank_task_init",
    "slurm_spank_task_post_fork",
    "slurm_spank_task_exit",
)
_BEFORE_OPTIONS = ("slurm_spank_init", "slurm_spank_slurmd_init", "slurm_spank_slurmd_exit")


class Facts(msgspec.Struct, frozen=True):
    """What is known about a container's job.

    Attributes:
        version: Slurm's: "22.05.8".
        uid: The user's, as Slurm sees it; likewise gid.
        gid: See uid.
        groups: The user's further groups.
        job: The job's number.
        nodes: How many nodes it has.
        tasks: How many tasks it has.
        cpus: How many processors the node gives it; 0 if that is not known.
        argv: The command of its task.
        pid: The task's, 0 when that is not known.
        status: How the task has ended, as wait(2) has it; None while it has not.
    """

    version: str
    uid: int = 0
    gid: int = 0
    groups: Sequence[int] = ()
    job: int = 0
    nodes: int = 1
    tasks: int = 1
    cpus: int = 0
    argv: Sequence[str] = ()
    pid: int = 0
    status: int | None = None


class State(msgspec.Struct, frozen=True):
    """What a callback is told (`spank.lua`).

    Attributes:
        arguments: `spank.args`.
        items: Values for get_item, by name.
        refused: Why there is none, by name, for the others.
        job: The job's environment.
        control: The job control environment.
        closed: Why one of these two, `job` or `control`, can neither be read nor changed.
        given: The options that were given: their arguments, or true.
        registers: Whether options may be registered.
        asks: Whether getopt may be called.
    """

    arguments: Sequence[str]
    items: Mapping[str, object]
    refused: Mapping[str, str]
    job: Mapping[str, str]
    control: Mapping[str, str]
    closed: Mapping[str, str]
    given: Mapping[str, str | bool]
    registers: bool
    asks: bool


def state(
    context: ContextName,
    callback: str,
    facts: Facts,
    *,
    arguments: Sequence[str] = (),
    job: Mapping[str, str] | None = None,
    control: Mapping[str, str] | None = None,
    given: Mapping[str, str | bool] | None = None,
) -> State:
    """Say what a callback may ask for, and what the answers are.

    Args:
        context: Where it is called.
        callback: It; "" for that of an option.
        facts: What is known of the job.
        arguments: Those of its script.
        job: The job's environment.
        control: The job control environment.
        given: The options that were given.
    """
    values = _values(facts)
    items: dict[str, object] = {}
    refused: dict[str, str] = {}
    for name, value in values.items():
        reason = _refusal(context, callback, name, value)
        if reason:
            refused[name] = reason
        else:
            items[name] = value
    return State(
        arguments,
        items,
        refused,
        job or {},
        control or {},
        _closed(context),
        given or {},
        callback == "slurm_spank_init" and context in (*_LOCAL, "remote"),
        callback not in _BEFORE_OPTIONS,
    )


def _refusal(context: ContextName, callback: str, name: str, value: object) -> str:
    """Say why an item cannot be had, or nothing."""
    if name in VERSION_ITEMS:
        return ""
    if context == "job_script":
        return "" if name in ("S_JOB_ID", "S_JOB_UID") else NOT_AVAILABLE
    if context == "slurmd":
        return NOT_AVAILABLE
    if context in _LOCAL:
        if name not in LOCAL_ITEMS:
            return NOT_REMOTE
        return "" if callback == "slurm_spank_local_user_init" else NOT_AVAILABLE
    if name in TASK_ITEMS and callback not in _OF_A_TASK:
        return NOT_TASK
    if name == "S_TASK_EXIT_STATUS" and value is None:
        return NOT_TASK
    if name.startswith("S_JOB_PID_TO_") and not value:
        return NOT_EXECUTED
    return ""


def _closed(context: ContextName) -> dict[str, str]:
    if context in _LOCAL:
        return {}
    if context == "remote":
        return {"control": NOT_LOCAL}
    return {"job": NOT_REMOTE, "control": NOT_AVAILABLE}


def _values(facts: Facts) -> dict[str, object]:
    """Answer all items; JSON has no numbers for names, so one that is a number has a mark."""
    major, minor, micro = (*facts.version.split("."), "", "")[:3]
    cores = _cores(facts.cpus)
    by_pid = {f"={facts.pid}": 0} if facts.pid else {}
    return {
        "S_JOB_UID": facts.uid,
        "S_JOB_GID": facts.gid,
        "S_JOB_ID": facts.job,
        "S_JOB_STEPID": 0,
        "S_JOB_NNODES": facts.nodes,
        "S_JOB_TOTAL_TASK_COUNT": facts.tasks,
        "S_JOB_ARGV": facts.argv,
        "S_JOB_ENV": True,  # spank.lua has it
        "S_JOB_NODEID": 0,
        "S_JOB_LOCAL_TASK_COUNT": 1,
        "S_JOB_NCPUS": facts.cpus,
        "S_JOB_PID_TO_GLOBAL_ID": by_pid,
        "S_JOB_PID_TO_LOCAL_ID": by_pid,
        "S_JOB_LOCAL_TO_GLOBAL_ID": {"=0": 0},
        "S_JOB_GLOBAL_TO_LOCAL_ID": {"=0": 0},
        "S_JOB_SUPPLEMENTARY_GIDS": facts.groups,
        "S_STEP_CPUS_PER_TASK": 1,
        "S_JOB_ALLOC_CORES": cores,
        "S_JOB_ALLOC_MEM": 0,
        "S_STEP_ALLOC_CORES": cores,
        "S_STEP_ALLOC_MEM": 0,
        "S_SLURM_RESTART_COUNT": 0,
        "S_JOB_ARRAY_ID": 0,
        "S_JOB_ARRAY_TASK_ID": _NO_VAL,
        "S_TASK_ID": 0,
        "S_TASK_GLOBAL_ID": 0,
        "S_TASK_PID": facts.pid or -1,  # as in slurmstepd's child, which does not know it
        "S_TASK_EXIT_STATUS": facts.status,
        "S_SLURM_VERSION": facts.version,
        "S_SLURM_VERSION_MAJOR": major,
        "S_SLURM_VERSION_MINOR": minor,
        "S_SLURM_VERSION_MICRO": micro,
    }


def _cores(count: int) -> str:
    """List processors as Slurm does: `0`, `0-3`."""
    return "0" if count <= 1 else f"0-{count - 1}"
