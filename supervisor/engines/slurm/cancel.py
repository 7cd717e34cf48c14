"""scancel: ends a job by its id, or signals a step."""

import signal

import trio

from scrun.core.errors import EngineError
from scrun.supervisor.children.processes import ChildEnv, child
from scrun.supervisor.children.pumps import messages
from scrun.supervisor.engines.slurm.grammar import Sentence, complaint, parse_line
from scrun.supervisor.engines.slurm.tools import Tools

_DEADLINE = 20.0


async def cancel_job(tools: Tools, child_env: ChildEnv, job_id: str) -> None:
    """End a running or pending job, unless it is gone already.

    Raises:
        EngineError: Slurm does not answer; the job may still be there.
    """
    status, errors = await _scancel(tools, child_env, [job_id])
    if status and not _means(errors, Sentence.GONE):
        raise EngineError(f"job {job_id} may still be there: {_error_text(errors)}")


async def signal_step(tools: Tools, child_env: ChildEnv, step_id: str, number: int) -> None:
    """Send a signal to the processes of a step.

    scancel of 22.05 fails with "Invalid job id specified" or "No error" although the signal was
    delivered: these count as success.

    Raises:
        EngineError: Slurm does not answer, or does not know the signal.
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
    with trio.move_on_after(_DEADLINE):
        async with (
            messages(errors.append) as stderr,
            child([tools.scancel, *arguments], child_env, stderr=stderr) as scancel,
        ):
            status = await scancel.wait()
        return status, errors
    return 1, []
