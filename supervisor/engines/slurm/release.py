"""Releases a job by its id, when salloc cannot."""

import trio

from scrun.core.errors import EngineError, described, leaves
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.engines.slurm.signals import cancel_job
from scrun.supervisor.engines.slurm.tools import Tools
from scrun.supervisor.log.journal import Journal

_FIRST_PAUSE, _LAST_PAUSE = 1.0, 60.0


async def cancel_in_the_end(
    tools: Tools, child_env: ChildEnv, journal: Journal, job_id: str
) -> None:
    """Cancel a job that salloc could not release; try until that works.

    Slurm may not answer, and this machine may have no process to spare. Until then the container's
    record keeps the job's id: a supervisor that has to end leaves the job to the next command.

    Args:
        tools: Slurm's tools.
        child_env: Their environment.
        journal: Where failures are logged.
        job_id: The job.
    """
    pause = _FIRST_PAUSE
    doubt = f"job {job_id} may still be there"
    while True:
        try:
            return await cancel_job(tools, child_env, job_id)
        except Exception as error:
            if not may_pass(error):
                raise
            text = described(error)
        message = text if text.startswith(doubt) else f"{doubt}: {text}"
        journal.write("error", f"{message}; trying again in {pause:g} s")
        await trio.sleep(pause)
        pause = min(2 * pause, _LAST_PAUSE)


def may_pass(error: Exception) -> bool:
    """Return whether an error may be temporary: a tool of Slurm failed, or could not start."""
    return all(isinstance(leaf, EngineError | OSError) for leaf in leaves(error))
