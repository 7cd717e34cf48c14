"""Changes what Slurm lets a user change of a running job."""

from scrun.core.errors import EngineError
from scrun.supervisor.children.processes import ChildEnv, child
from scrun.supervisor.children.pumps import messages
from scrun.supervisor.engines.slurm.tools import Tools


async def set_time_limit(tools: Tools, child_env: ChildEnv, job_id: str, limit: str) -> None:
    """Change a job's time limit; only an administrator can raise it.

    Args:
        tools: Slurm's tools.
        child_env: Their environment.
        job_id: The job.
        limit: TimeLimit of scontrol(1), known to be a valid time.

    Raises:
        EngineError: Slurm refuses; with its message.
    """
    if tools.scontrol is None:
        raise EngineError("scontrol is not installed here: the time limit cannot be changed")
    errors: list[str] = []
    command = [tools.scontrol, "update", f"JobId={job_id}", f"TimeLimit={limit}"]
    async with (
        messages(errors.append) as stderr,
        child(command, child_env, stderr=stderr) as scontrol,
    ):
        status = await scontrol.wait()
    if status:
        reason = errors[-1] if errors else f"scontrol ended with {status}"
        raise EngineError(f"job {job_id}: the time limit was not changed: {reason}")
