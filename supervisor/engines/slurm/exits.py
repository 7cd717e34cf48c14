"""How a step ended: made of what srun and salloc said. Pure."""

import os
from signal import SIGKILL

import msgspec

from scrun.model.states import Ending, exited, taken
from scrun.supervisor.engines.slurm.messages import SallocHeard, SrunHeard

# slurm/slurm.h, SIG_OOM: the low byte of a task's status when the kernel killed one of the step's
# processes for want of memory, whichever it was; its own status is not told then (22.05)
_OUT_OF_MEMORY = 253
_KILLED = 128 + SIGKILL


class Exit(msgspec.Struct, frozen=True):
    """How a step ended.

    Attributes:
        status: The exit status of its container, 128+n for signals; the highest of several.
        launched: Whether it ran at all.
        out_of_memory: Whether the kernel killed a process of it for want of memory.
    """

    status: int
    launched: bool
    out_of_memory: bool = False


def step_exit(heard: SrunHeard, srun_status: int) -> Exit:
    """Derive the container's exit status from what srun said and returned.

    The tasks' own wait statuses are exact, and the highest one counts. srun's exit status is not:
    0 for a step that was ended with its job, 130 for a bundle that is missing (seen with 22.05).
    """
    floor = max(srun_status, 1)  # of what is no success, whatever srun returned
    if heard.launch_failed:
        return Exit(floor, launched=False)
    if heard.statuses:
        lack = any(status & 0xFF == _OUT_OF_MEMORY for status in heard.statuses)
        codes = [_exit_code(status) for status in heard.statuses]
        if heard.missing > 0 and (heard.aborted or srun_status):
            codes.append(floor)  # some succeeded, and nobody knows how the others ended
        return Exit(max(codes), launched=True, out_of_memory=lack)
    if heard.started and not heard.aborted:
        return Exit(srun_status if srun_status >= 0 else 128 - srun_status, launched=True)
    return Exit(floor, launched=heard.started)


def ending_of_step(heard: SrunHeard, ended: Exit, salloc: SallocHeard | None = None) -> Ending:
    """Return how a container, or what was executed in one, ended by its step.

    Args:
        heard: What srun has said.
        ended: What `step_exit` made of it.
        salloc: What salloc has said of the job, if it is ours. It does not say which step it
            means, so only one that was killed is.
    """
    too_large = salloc is not None and salloc.over_memory and ended.status == _KILLED
    if not (ended.out_of_memory or too_large):
        return exited(ended.status)
    job_id = heard.step_id.partition(".")[0]
    return taken(
        "out-of-memory",
        f"job {job_id}: out of memory, a process was killed: ask for more with "
        "SCRUN_MEM_PER_NODE or the engine's --memory",
    )


def _exit_code(status: int) -> int:
    if status & 0xFF == _OUT_OF_MEMORY:
        return _KILLED
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
