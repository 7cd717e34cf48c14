"""Finds jobs that no record has, because salloc or the supervisor was killed."""

import contextlib

import msgspec
import trio

from scrun.model.identity import is_dead, read_mark
from scrun.model.record import ProcessIdentity
from scrun.supervisor.children.processes import ChildEnv, output_of
from scrun.supervisor.engines.slurm.tools import Tools

_FORMAT = "JobID:30,AllocSID:30,SubmitTime:30"
_MINE = ("--me", "--all", "--noheader")  # all: also in hidden partitions
_ANSWER = 10.0
_HELD = "PENDING,CONFIGURING,RUNNING,SUSPENDED,STOPPED"
_ON_ITS_WAY = 1.0
_CLOCKS_DIFFER = 2.0


def submitted_by(answer: str, session: int, since: float) -> list[str]:
    """Parse squeue's output: id, session and submission time of each job.

    Args:
        session: The session of the salloc: its process id, as it is a session leader.
        since: When it began; a session on another host may have the same number.

    Returns:
        The jobs that it submitted.
    """
    found = []
    for line in answer.splitlines():
        words = line.split()
        if len(words) != 3 or words[1] != str(session) or not words[2].isdigit():
            continue
        if int(words[2]) >= since - _CLOCKS_DIFFER:
            found.append(words[0])
    return found


async def jobs_of_a_killed_salloc(
    tools: Tools, child_env: ChildEnv, session: int, since: float
) -> list[str]:
    """Ask Slurm for the jobs of a salloc that was killed before it could name one.

    Its request may still be on its way to slurmctld, so this asks twice.
    """
    if tools.squeue is None:
        return []
    environment = {**child_env.environment, "SLURM_TIME_FORMAT": "%s"}
    asking = msgspec.structs.replace(child_env, environment=environment)
    command = [tools.squeue, *_MINE, "--Format", _FORMAT]
    found: set[str] = set()
    with trio.move_on_after(_ANSWER), contextlib.suppress(OSError):
        for pause in (0.0, _ON_ITS_WAY):
            await trio.sleep(pause)
            found.update(submitted_by(await output_of(command, asking), session, since))
    return sorted(found)


def marked(answer: str, root: str) -> list[tuple[str, ProcessIdentity]]:
    """Parse squeue's output: id and comment of each job.

    Returns:
        The jobs of this machine and root directory, and the supervisor of each.
    """
    pairs = (line.split(maxsplit=1) for line in answer.splitlines())
    numbered = ((pair[0], read_mark(pair[1], root)) for pair in pairs if len(pair) == 2)
    return [(number, whose) for number, whose in numbered if whose and number.isdigit()]


async def jobs_of_the_dead(tools: Tools, child_env: ChildEnv, root: str) -> list[str]:
    """Ask Slurm for the jobs of supervisors of this root directory that are dead."""
    if tools.squeue is None:
        return []
    command = [tools.squeue, *_MINE, f"--states={_HELD}", "--format=%A %k"]
    with trio.move_on_after(_ANSWER), contextlib.suppress(OSError):
        found = marked(await output_of(command, child_env), root)
        return [number for number, whose in found if is_dead(whose)]
    return []
