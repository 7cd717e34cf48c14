"""What a script may read and change, by context and callback. Pure.

Measured with a plugin in C that requests everything in every callback of Slurm 22.05.8. The error
texts are those of spank_strerror(3). Where the manual, spank-lua(8), allows more than Slurm, the
manual counts: `setenv` in the local contexts, and `getopt` in all callbacks after the first.
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


class JobFacts(msgspec.Struct, frozen=True):
    """What is known about a container's job.

    Attributes:
        version: Slurm's version: "22.05.8".
        cpus: The number of its processors on the node; 0 if unknown.
        argv: The command of its task.
        pid: The pid of its task; 0 if unknown.
        status: The task's wait status (wait(2)); None while it runs.
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


class SpankItems(msgspec.Struct, frozen=True):
    """What a callback may read (see `spank.lua`).

    Attributes:
        items: Values for get_item, by name; `refused` is why others have none.
        closed: Why one of these two, `job` or `control`, can be neither read nor changed.
        given: The options of the command line: their arguments, or true.
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
    facts: JobFacts,
    *,
    arguments: Sequence[str] = (),
    job: Mapping[str, str] | None = None,
    control: Mapping[str, str] | None = None,
    given: Mapping[str, str | bool] | None = None,
) -> SpankItems:
    """Return what a callback may read, with the values; it is "" for that of an option."""
    values = _values(facts)
    items: dict[str, object] = {}
    refused: dict[str, str] = {}
    for name, value in values.items():
        reason = _refusal(context, callback, name, value)
        if reason:
            refused[name] = reason
        else:
            items[name] = value
    return SpankItems(
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
    """Return why an item has no value, or ""."""
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


def _values(facts: JobFacts) -> dict[str, object]:
    """Return the values of all items; in JSON, a key that is a number begins with `=`."""
    major, minor, micro = (*facts.version.split("."), "", "")[:3]
    cores = "0" if facts.cpus <= 1 else f"0-{facts.cpus - 1}"  # as Slurm writes it
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
        "S_TASK_PID": facts.pid or -1,  # as in slurmstepd's child, which does not know its pid
        "S_TASK_EXIT_STATUS": facts.status,
        "S_SLURM_VERSION": facts.version,
        "S_SLURM_VERSION_MAJOR": major,
        "S_SLURM_VERSION_MINOR": minor,
        "S_SLURM_VERSION_MICRO": micro,
    }
