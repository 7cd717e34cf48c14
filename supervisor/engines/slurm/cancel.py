"""scancel: ends a job by its id, or signals a step."""

import signal

import trio

from scrun.core.errors import EngineError
from scrun.supervisor.children.processes import ChildEnv, child
from scrun.supervisor.children.pumps import messages
from scrun.supervisor.engines.slurm.grammar import Sentence, complaint, understood
from scrun.supervisor.engines.slurm.tools import Tools

_DEADLINE = 20.0


async def cancel_job(tools: Tools, child_env: ChildEnv, job_id: str) -> None:
    """End a running or pending job, unless it is gone already.

    Raises:
        EngineError: Slurm does not answer; the job may still be there.
    """
    status, said = await _scancel(tools, child_env, [job_id])
    if status and not _means(said, Sentence.GONE):
        raise EngineError(f"job {job_id} may still be there: {_told(said)}")


async def signal_step(tools: Tools, child_env: ChildEnv, step_id: str, number: int) -> None:
    """Send a signal to the processes of a step.

    scancel of 22.05 fails with "Invalid job id specified" or "No error" although the signal was
    delivered: these count as success.

    Raises:
        EngineError: Slurm does not answer, or does not know the signal.
    """
    name = signal.Signals(number).name.removeprefix("SIG")
    status, said = await _scancel(tools, child_env, ["--signal", name, step_id])
    if status and not _means(said, Sentence.GONE, Sentence.NO_ERROR):
        raise EngineError(f"signal {name} was not delivered: {_told(said)}")


def _means(said: list[str], *sentences: Sentence) -> bool:
    heard = (understood("scancel", line) for line in said)
    return any(words is not None and words.sentence in sentences for words in heard)


def _told(said: list[str]) -> str:
    texts = [complaint("scancel", line) or line for line in said]
    return "; ".join(texts) or "scancel does not answer"


async def _scancel(
    tools: Tools, child_env: ChildEnv, arguments: list[str]
) -> tuple[int, list[str]]:
    said: list[str] = []
    with trio.move_on_after(_DEADLINE):
        async with (
            messages(said.append) as stderr,
            child([tools.scancel, *arguments], child_env, stderr=stderr) as scancel,
        ):
            status = await scancel.wait()
        return status, said
    return 1, []
