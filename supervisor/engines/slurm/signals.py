"""Signals a container that runs as a step, and ends jobs by their ids.

scancel signals all processes of a step. A container's signal is for its first process (runtime.md,
Kill): with scancel, a shell that waits for a child with a trap set would see the child die of the
same signal first. So the OCI runtime on the node delivers the signal, called in a separate step by
the site's RunTimeKill (oci.conf(5)). scancel serves for SIGKILL, which is for all processes, and
where there is no such command.

A container of several tasks is one on each node, or more (23.02), and the first process of each
gets the signal. One step on all those nodes delivers it.
"""

import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence

import trio

from scrun.core.errors import EngineError, SettingsError
from scrun.supervisor.children.node_scripts import NodeCommands
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.children.pumps import heard
from scrun.supervisor.engines.slurm.grammar import Sentence, complaint, parse_line
from scrun.supervisor.engines.slurm.tools import Tools

_DEADLINE = 15.0
_LONGEST = 100_000  # of a script: one argument has 128 KiB at most

Running = Mapping[str, Sequence[int]]
"""The tasks of a step: for each node their numbers there, from 0."""

# For some milliseconds after its step began the runtime does not know a container, and no event
# tells when it does. The script on the node retries for three seconds: a new step for each try
# would cost more, and signal again the containers that have the signal.
_TRIES = 30
_TRY = """\
try() {
    n=0
    until (eval "$1") >/dev/null 2>&1; do
        n=$((n + 1))
        [ $n -lt $most ] || return
        sleep 0.1
    done
    echo delivered
}
"""
_SCANCEL = 20.0


def kill_scripts(
    commands: NodeCommands, step_id: str, running: Running, number: int, tries: int = _TRIES
) -> Iterator[tuple[list[str], str]]:
    """Write scripts that signal the containers of the node they run on.

    A script prints `delivered` for each container; it tries so often, a tenth of a second apart.
    Yields nodes, and their script: one script for all, unless there are hundreds of nodes. Raises
    SettingsError as `NodeCommands.kill`.
    """
    nodes: list[str] = []
    cases = ""
    for node, tasks in running.items():
        kills = [commands.kill(step_id, node, number, task) for task in tasks]
        calls = " ".join(f"try {shlex.quote(kill)} &" for kill in kills)
        case = f"{shlex.quote(node)}) {calls} ;;\n"
        if nodes and len(cases) + len(case) > _LONGEST:
            yield nodes, _script(cases, tries)
            nodes, cases = [], ""
        nodes.append(node)
        cases += case
    if nodes:
        yield nodes, _script(cases, tries)


def _script(cases: str, tries: int) -> str:
    return f"most={tries}\n{_TRY}case $SLURMD_NODENAME in\n{cases}esac\nwait\n"


async def signal_container(
    tools: Tools,
    child_env: ChildEnv,
    commands: NodeCommands,
    step_id: str,
    running: Running,
    number: int,
) -> None:
    """Send a signal to the first process of a container, or to all if that is not possible.

    With several tasks the first process of each gets it. Some tasks may end meanwhile: if one has
    got it, all remaining ones have, and scancel would deliver it twice. Raises EngineError if it
    was not delivered.
    """
    delivered = False
    if commands.patterns.kill:
        try:
            for nodes, script in kill_scripts(commands, step_id, running, number):
                delivered |= await _by_runtime(tools, child_env, step_id, nodes, script)
        except SettingsError:
            pass
    if not delivered:
        await signal_step(tools, child_env, step_id, number)


async def _by_runtime(
    tools: Tools, child_env: ChildEnv, step_id: str, nodes: Sequence[str], script: str
) -> bool:
    """Call the runtime on the nodes; return whether any delivered the signal."""
    count = len(nodes)
    words = [*tools.srun, "--jobid", step_id.partition(".")[0], "--overlap", "--export=NONE"]
    words += [f"--nodes={count}", f"--ntasks={count}", "--nodelist", ",".join(nodes)]
    words += ["--chdir=/", "--input=none", "--job-name=scrun-kill", "--", "/bin/sh", "-c", script]
    delivered: list[str] = []
    with trio.move_on_after(_DEADLINE) as patience:
        await heard(words, child_env, lambda _: None, delivered.append)
    if patience.cancelled_caught and not delivered:
        raise EngineError("the signal was not delivered: Slurm started no step for it")
    return bool(delivered)


async def cancel_job(tools: Tools, child_env: ChildEnv, job_id: str) -> None:
    """End a running or pending job, if it is there; EngineError if Slurm does not answer."""
    status, errors = await _scancel(tools, child_env, [job_id])
    if status and not _means(errors, Sentence.GONE):
        raise EngineError(f"job {job_id} may still be there: {_error_text(errors)}")


async def signal_step(tools: Tools, child_env: ChildEnv, step_id: str, number: int) -> None:
    """Send a signal to the processes of a step.

    scancel of 22.05 fails with "Invalid job id specified" or "No error" although the signal was
    delivered: these count as success. Raises EngineError if Slurm does not answer, or does not
    know the signal.
    """
    name = signal.Signals(number).name.removeprefix("SIG")
    status, errors = await _scancel(tools, child_env, ["--signal", name, step_id])
    if status and not _means(errors, Sentence.GONE, Sentence.NO_ERROR):
        raise EngineError(f"signal {name} was not delivered: {_error_text(errors)}")


def _means(errors: list[str], *sentences: Sentence) -> bool:
    parsed = (parse_line("scancel", line) for line in errors)
    return any(words is not None and words.sentence in sentences for words in parsed)


def _error_text(errors: list[str]) -> str:
    texts = [complaint("scancel", line) or line for line in errors]
    return "; ".join(texts) or "scancel does not answer"


async def _scancel(
    tools: Tools, child_env: ChildEnv, arguments: list[str]
) -> tuple[int, list[str]]:
    errors: list[str] = []
    with trio.move_on_after(_SCANCEL):
        return await heard([tools.scancel, *arguments], child_env, errors.append), errors
    return 1, []
