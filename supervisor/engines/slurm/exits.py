"""Derives how a step ended from the messages of srun and salloc. Pure."""

import os
from signal import SIGKILL

import msgspec

from scrun.model.states import Ending, exited, taken
from scrun.supervisor.engines.slurm.job_state import JobState, StepState

# slurm/slurm.h, SIG_OOM: the low byte of a task's status when the kernel killed any process of the
# step for want of memory; the task's own status is lost then (22.05)
_OUT_OF_MEMORY = 253
_KILLED = 128 + SIGKILL


class Exit(msgspec.Struct, frozen=True):
    """How a step ended.

    Attributes:
        status: The exit status of its container, 128+n for signals; the highest of several.
        launched: Whether it ran at all.
        out_of_memory: Whether the kernel killed one of its processes for want of memory.
    """

    status: int
    launched: bool
    out_of_memory: bool = False


def step_exit(state: StepState, srun_status: int) -> Exit:
    """Derive the container's exit status from srun's messages and exit status.

    The tasks' own wait statuses are exact, and the highest one counts. srun's exit status is not:
    0 for a step that was ended with its job, 130 for a bundle that is missing (seen with 22.05).
    """
    floor = max(srun_status, 1)  # the least status of a failure, whatever srun returned
    if state.launch_failed:
        return Exit(floor, launched=False)
    if state.statuses:
        lack = any(status & 0xFF == _OUT_OF_MEMORY for status in state.statuses)
        codes = [_exit_code(status) for status in state.statuses]
        if state.missing > 0 and (state.aborted or srun_status):
            codes.append(floor)  # some succeeded, and nobody knows how the others ended
        return Exit(max(codes), launched=True, out_of_memory=lack)
    if state.started and not state.aborted:
        return Exit(srun_status if srun_status >= 0 else 128 - srun_status, launched=True)
    return Exit(floor, launched=state.started)


def ending_of_step(state: StepState, ended: Exit, salloc: JobState | None = None) -> Ending:
    """Return how a container, or a program executed in one, ended.

    Args:
        salloc: The state of the job, if scrun allocated it. It does not name the step that ran
            out of memory, so this blames only one that was killed.
    """
    too_large = salloc is not None and salloc.over_memory and ended.status == _KILLED
    if not (ended.out_of_memory or too_large):
        return exited(ended.status)
    return out_of_memory(state.step_id.partition(".")[0])


def out_of_memory(job_id: str) -> Ending:
    """Return the ending of a container after the kernel, or Slurm, killed one of its processes."""
    return taken(
        "out-of-memory",
        f"job {job_id}: out of memory, a process was killed: request more with "
        "SCRUN_MEM_PER_NODE or the engine's --memory",
    )


def without_files(which: str) -> Ending:
    """Return the ending of a container whose images nobody serves any more.

    Args:
        which: Its job, and perhaps its task.
    """
    return taken("scrun-failure", f"job {which}: its root file system went away")


def exit_code(status: int) -> int:
    """Return an exit status for a wait status (waitpid(2)): 128+n for signals."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _exit_code(status: int) -> int:
    return _KILLED if status & 0xFF == _OUT_OF_MEMORY else exit_code(status)
