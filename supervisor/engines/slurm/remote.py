"""Shell commands on all nodes of a job."""

from collections.abc import Callable, Mapping, Sequence

from scrun.core.errors import EngineError
from scrun.supervisor.children.processes import ChildEnv, child, shell_status
from scrun.supervisor.children.pumps import messages
from scrun.supervisor.engines.slurm.grammar import Sentence, complaint, understood
from scrun.supervisor.engines.slurm.tools import Tools, of_the_job

_GRACE = 0.5  # srun ends its step at once when it is told


# --chdir to what a node does not have is a message on the standard error of every task
_THERE = 'cd "$1" 2>/dev/null; exec /bin/sh -c "$2"'


def in_directory(directory: str, script: str) -> tuple[str, ...]:
    """Return the program that runs a shell script in a directory, or where there is none in /."""
    return ("/bin/sh", "-c", _THERE, "sh", directory, script)


async def run_on_nodes(
    tools: Tools,
    child_env: ChildEnv,
    job_id: str,
    environment: Mapping[str, str],
    program: Sequence[str],
    output: int,
    log: Callable[[str], None],
) -> int:
    """Run a program once on each node of a job, as a step of its own.

    Args:
        tools: Slurm's tools.
        child_env: Their surroundings.
        job_id: The job.
        environment: The job's variables, for the number of nodes.
        program: It, and its arguments.
        output: What gets the standard output and error of the tasks. srun's own messages, which
            it writes to its standard error, go to `log` instead.
        log: Called with each of its lines.

    Returns:
        The highest exit status; 128+n for a signal.

    Raises:
        EngineError: The step could not be started.
    """
    nodes = environment.get("SLURM_JOB_NUM_NODES") or environment.get("SLURM_NNODES") or "1"
    argv = [*tools.srun, "--jobid", job_id, "--job-name", "scrun", "--overlap"]
    argv += ["--nodes", nodes, "--ntasks", nodes, "--ntasks-per-node", "1", "--mem", "0"]
    argv += ["--chdir", "/", "--input", "none", f"--error=/proc/self/fd/{output}"]
    argv += ["--", *program]
    whole = child_env.with_more(of_the_job(environment))
    refused = ""

    def hear(line: str) -> None:
        nonlocal refused
        said = understood("srun", line)
        if said is not None and said.sentence is Sentence.NO_STEP:
            refused = complaint("srun", line)
        log(line)

    async with (
        messages(hear) as own,
        child(argv, whole, stdout=output, stderr=own, pass_fds=(output,), grace=_GRACE) as srun,
    ):
        status = await srun.wait()
    if status and refused:
        raise EngineError(refused)
    return shell_status(status)
