"""What became of a job that was taken away, when salloc does not say."""

import trio

from scrun.states import Ending, taken
from supervisor.engines.slurm.tools import Tools
from supervisor.processes import Setting, output_of

_ANSWER = 3.0

# squeue(1), JOB STATE CODES and JOB REASON CODES. While the nodes clean up the state is only
# COMPLETING; the reason is there at once.
_WORDS = {
    "TIMEOUT": "time-limit",
    "TimeLimit": "time-limit",
    "NODE_FAIL": "node-failure",
    "NodeDown": "node-failure",
    "PREEMPTED": "preempted",
}
_TEXTS = {
    "time-limit": "its time limit was reached",
    "node-failure": "a node of it failed",
    "preempted": "it was preempted by another one",
}


def read_fate(answer: str, job_id: str) -> Ending | None:
    """Read what squeue says: state and reason; None when it says nothing of use."""
    for word in answer.split():
        if reason := _WORDS.get(word):
            return taken(reason, f"job {job_id} ended: {_TEXTS[reason]}")
    return None


async def ask_fate(tools: Tools, setting: Setting, job_id: str) -> Ending | None:
    """Ask Slurm why a job ended.

    salloc 22.05 tells a time limit only if a warning came before it: of 8 jobs whose limit was
    moved to the next seconds 3 were just "revoked".

    Returns:
        How it ended; None when Slurm does not answer, or it was just cancelled.
    """
    if tools.squeue is None:
        return None
    command = [
        tools.squeue,
        "--noheader",
        "--jobs",
        job_id,
        "--states",
        "all",
        "--format",
        "%T %r",
    ]
    with trio.move_on_after(_ANSWER):
        return read_fate(await output_of(command, setting), job_id)
    return None
