"""Asks Slurm how a job ended, when salloc does not say, and for jobs that no record has."""

import contextlib
import os
import re
import time
from collections.abc import Sequence

import trio

from scrun.core.users import user_name
from scrun.model.identity import is_dead, read_mark
from scrun.model.record import ProcessIdentity
from scrun.model.states import Ending, taken
from scrun.supervisor.children.processes import ChildEnv, output_of
from scrun.supervisor.children.pumps import heard
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.engines.slurm.grammar import parse_line
from scrun.supervisor.engines.slurm.tools import Tools

_NEWS_OF_THE_JOB = 2.0
_ANSWER = 1.5  # less than that
_ACCOUNTING_LAGS = 0.3

# squeue(1), JOB STATE CODES and JOB REASON CODES. While the nodes clean up, the state is only
# COMPLETING; the reason, or the time of a preemption, is there at once.
_REASONS = {
    "TIMEOUT": "time-limit",
    "TimeLimit": "time-limit",
    "NODE_FAIL": "node-failure",
    "NodeDown": "node-failure",
    "PREEMPTED": "preempted",
    "OUT_OF_MEMORY": "out-of-memory",
}
_TEXTS = {
    "time-limit": "its time limit was reached",
    "node-failure": "one of its nodes failed",
    "preempted": "another job preempted it",
    "out-of-memory": "out of memory",
}
_FORMAT = "State:|,PreemptTime:|,Reason:|,EndTime:"
_EPOCH = re.compile(r"\d{1,12}", re.ASCII)
TIMES_AS_SECONDS = {"SLURM_TIME_FORMAT": "%s"}  # squeue(1): for strftime
_NO_TIME = ("", "None", "N/A")
_NOT_YET = ("RUNNING", "PENDING", "COMPLETING")
_CANCELLED_BY = re.compile(r"CANCELLED by (\d{1,10})", re.ASCII)


def parse_squeue(answer: str, job_id: str, now: float) -> Ending | None:
    """Parse squeue's answer, `TIMEOUT|N/A|TimeLimit|1795289230`: state, preemption, reason, end.

    An administrator may write any text as reason. Returns how the job ended, or None if the answer
    does not tell; `now` is in seconds of the epoch, as are the times.
    """
    state, _, rest = answer.strip().partition("|")
    preempted, _, rest = rest.partition("|")
    why, _, end = rest.rpartition("|")
    if reason := _REASONS.get(state) or _REASONS.get(why):
        return _ending(job_id, reason)
    # a preempted job may still be cancelled in its grace time, and then its state says so
    if state == "COMPLETING" and preempted not in _NO_TIME:
        return _ending(job_id, "preempted")
    # slurmctld looks for such jobs every 30 s only, but starts no step of them before
    if state == "RUNNING" and _EPOCH.fullmatch(end) and int(end) <= now:
        return _ending(job_id, "time-limit")
    return None


def parse_sacct(answer: str, job_id: str, now: float) -> Ending | None:
    """Parse sacct's answer: the state, and who cancelled the job; return as `parse_squeue`."""
    if cancelled := _CANCELLED_BY.search(answer):
        who = user_name(int(cancelled[1]), "user {}")
        return taken("cancelled", f"job {job_id} was cancelled by {who}")
    return parse_squeue(answer, job_id, now)


async def ended_meanwhile(tools: Tools, child_env: ChildEnv, job_id: str) -> Ending | None:
    """Return how a job ended whose step was ended, if it did and nobody else learns of it.

    salloc reports whether it ended with the step, and then this is cancelled.
    """
    await trio.sleep(_NEWS_OF_THE_JOB)
    return await query_ending(tools, child_env, job_id)


async def query_ending(tools: Tools, child_env: ChildEnv, job_id: str) -> Ending | None:
    """Ask Slurm why a job ended that salloc reports as revoked.

    salloc 22.05 reports a time limit only if a warning came before it: of 8 jobs whose limit was
    lowered to a few seconds, 3 were just "revoked". It never reports a preemption. A slurmctld
    that starts without its state makes the nodes kill what they run, and nothing says why; but
    slurmctld knows ended jobs for MinJobAge, and does not know these. Only the accounting, where a
    site has it, tells who cancelled a job.

    Returns:
        How it ended; None if Slurm does not answer in time, or the job was just cancelled.
    """
    if tools.squeue is None:
        return None
    squeue = _squeue(tools.squeue, job_id)
    sacct = os.path.join(os.path.dirname(tools.squeue), "sacct")
    of_job = [sacct, "--allocations", "--noheader", "--parsable2", "--jobs", job_id]
    with trio.move_on_after(_ANSWER), contextlib.suppress(OSError):
        answer, known = await _query(squeue, child_env.with_more(TIMES_AS_SECONDS))
        if not known:
            lost = "Slurm does not know it any more: slurmctld has lost its state"
            return taken("cancelled", f"job {job_id} was ended: {lost}")
        ending = parse_squeue(answer, job_id, time.time())
        if ending is not None or not await in_thread(os.access, sacct, os.X_OK, abandon=True):
            return ending
        while True:
            answer = await output_of([*of_job, "--format=State%60"], child_env)
            if not answer.startswith(_NOT_YET):
                # a name service may take long to find the name of the user who cancelled it
                return await in_thread(parse_sacct, answer, job_id, time.time(), abandon=True)
            await trio.sleep(_ACCOUNTING_LAGS)
    return None


async def is_unknown(tools: Tools, child_env: ChildEnv, job_id: str) -> bool:
    """Return whether Slurm answers that it does not know the job, not even as an ended one.

    A killed slurmctld saves nothing: the next one does not know the jobs of the last seconds.
    salloc does not notice (22.05), and waits for ever.
    """
    if tools.squeue is None:
        return False
    known = True
    with trio.move_on_after(_ANSWER), contextlib.suppress(OSError):
        _, known = await _query(_squeue(tools.squeue, job_id), child_env)
    return not known


async def is_ending(tools: Tools, child_env: ChildEnv, job_id: str) -> bool:
    """Return whether Slurm is ending a job's processes, and has told them so; False if in doubt.

    A job is COMPLETING from before its first SIGTERM to the end of its last process.
    """
    if tools.squeue is None:
        return False
    answer = ""
    with trio.move_on_after(_ANSWER), contextlib.suppress(OSError):
        answer, _ = await _query(_squeue(tools.squeue, job_id), child_env)
    return answer.partition("|")[0].strip() == "COMPLETING"


def _squeue(squeue: str, job_id: str) -> list[str]:
    return [squeue, "--noheader", "--jobs", job_id, "--states", "all", "--Format", _FORMAT]


async def _query(squeue: Sequence[str], child_env: ChildEnv) -> tuple[str, bool]:
    """Ask squeue; return its answer, and whether it knows the job."""
    answer: list[str] = []
    errors: list[str] = []
    await heard(squeue, child_env, errors.append, answer.append)
    return "\n".join(answer), all(parse_line("squeue", line) is None for line in errors)


def _ending(job_id: str, reason: str) -> Ending:
    return taken(reason, f"job {job_id} ended: {_TEXTS[reason]}")


_SESSIONS = "JobID:30,AllocSID:30,SubmitTime:30"
_MINE = ("--me", "--all", "--noheader")  # all: also in hidden partitions
_PATIENCE = 10.0
_HELD = "PENDING,CONFIGURING,RUNNING,SUSPENDED,STOPPED"
_ON_ITS_WAY = 1.0
_CLOCKS_DIFFER = 2.0


def submitted_by(answer: str, session: int, since: float) -> list[str]:
    """Parse squeue's output, id, session and submission time of jobs; return a salloc's.

    Args:
        session: Its process id, as it is a session leader.
        since: When it began; a session on another host may have the same number.
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
    asking = child_env.with_more(TIMES_AS_SECONDS)
    command = [tools.squeue, *_MINE, "--Format", _SESSIONS]
    found: set[str] = set()
    with trio.move_on_after(_PATIENCE), contextlib.suppress(OSError):
        for pause in (0.0, _ON_ITS_WAY):
            await trio.sleep(pause)
            found.update(submitted_by(await output_of(command, asking), session, since))
    return sorted(found)


def marked(answer: str, root: str) -> list[tuple[str, ProcessIdentity]]:
    """Parse squeue's output: id and comment of each job.

    Returns the jobs of this machine and root directory, and the supervisor of each.
    """
    pairs = (line.split(maxsplit=1) for line in answer.splitlines())
    numbered = ((pair[0], read_mark(pair[1], root)) for pair in pairs if len(pair) == 2)
    return [(number, whose) for number, whose in numbered if whose and number.isdigit()]


async def jobs_of_the_dead(tools: Tools, child_env: ChildEnv, root: str) -> list[str]:
    """Ask Slurm for the jobs of supervisors of this root directory that are dead."""
    if tools.squeue is None:
        return []
    command = [tools.squeue, *_MINE, f"--states={_HELD}", "--format=%A %k"]
    with trio.move_on_after(_PATIENCE), contextlib.suppress(OSError):
        found = marked(await output_of(command, child_env), root)
        return [number for number, whose in found if is_dead(whose)]
    return []
