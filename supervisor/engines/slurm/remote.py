"""Runs programs on all nodes of a job."""

from collections.abc import Callable, Mapping, Sequence

from scrun.core.errors import EngineError
from scrun.supervisor.children.processes import ChildEnv, child, shell_status
from scrun.supervisor.children.pumps import messages
from scrun.supervisor.engines.slurm.grammar import Sentence, complaint, parse_line
from scrun.supervisor.engines.slurm.tools import Tools, for_a_command

_GRACE = 0.5  # srun ends its step at once on SIGTERM
# with --chdir to a missing directory every task writes a message to its standard error
_THERE = 'cd "$1" 2>/dev/null; exec /bin/sh -c "$2"'


def in_directory(directory: str, script: str) -> tuple[str, ...]:
    """Return the command that runs a shell script in a directory, or in / if that is missing."""
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
    """Run a program once on each node of a job, as a separate step.

    Args:
        tools: Slurm's tools.
        child_env: Their environment.
        job_id: The job.
        environment: The job's variables, for the number of nodes.
        program: The program and its arguments.
        output: The descriptor for the standard output and error of the tasks, without srun's own
            messages.
        log: Called with each line of srun's own messages.

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
    whole = child_env.with_more(for_a_command(environment))
    refused = ""

    def take_line(line: str) -> None:
        nonlocal refused
        parsed = parse_line("srun", line)
        if parsed is not None and parsed.sentence is Sentence.NO_STEP:
            refused = complaint("srun", line)
        log(line)

    async with (
        messages(take_line) as own,
        child(argv, whole, stdout=output, stderr=own, pass_fds=(output,), grace=_GRACE) as srun,
    ):
        status = await srun.wait()
    if status and refused:
        raise EngineError(refused)
    return shell_status(status)
