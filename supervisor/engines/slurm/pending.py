"""Jobs that are pending: what they wait for, asked for while they do.

salloc says that a job waits, and that it goes on, but neither why nor for how long, and Slurm has
no event for either. So squeue is asked: half a second after a job came into the queue, and then
after pauses that grow to a minute. That is polling, but of the kind that a person at the terminal
would do otherwise: it lasts as long as somebody waits, and a container that was created costs
nothing of it. No answer changes nothing.

One question is about all jobs of the supervisor that wait, whoever asks it, and a job that was
answered by another one's question puts its own off: a hundred jobs ask about as often as one.

When which answer comes (22.05): the reason at once, and after the first look of the scheduler,
within a second, the right one (PartitionConfig became PartitionTimeLimit); the estimated start
with the next run of the backfill scheduler (bf_interval, 30 s), for some reasons never.
"""

import contextlib
import re
import time
from collections.abc import Sequence

import msgspec
import trio

from scrun.model.waiting import (
    FORGOTTEN,
    Waiting,
    is_hopeless,
    is_news,
    is_too_much,
    waiting_line,
)
from scrun.supervisor.children.processes import ChildEnv, output_of
from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.engines.slurm.fate import is_forgotten
from scrun.supervisor.engines.slurm.tools import Tools

_FIRST_PAUSE, _SECOND_PAUSE, _LAST_PAUSE = 0.5, 2.0, 60.0
_SCHEDULER_LOOKS = 1.0
_ANSWER = 10.0
_AT_ONCE = 1000  # jobs in a question: a word of a command line has 128 KiB at most
_TIMES_AS_SECONDS = {"SLURM_TIME_FORMAT": "%s"}


class Queue:
    """What is known of the jobs that wait, from squeue."""

    def __init__(self, tools: Tools, give_up: Sequence[str] = ()) -> None:
        """Ask nothing yet.

        Args:
            tools: Slurm's tools.
            give_up: Reasons that no waiting cures (`[slurm] give_up`).
        """
        self._tools = tools
        self._give_up = give_up
        self._jobs: list[str] = []
        self._answers: dict[str, Waiting] = {}
        self._missing: set[str] = set()
        self._answered = trio.Event()
        self._turn = trio.Lock()

    async def watch(
        self, request: JobRequest, child_env: ChildEnv, job_id: str, because: str = ""
    ) -> Waiting:
        """Tell what a job waits for, until this is cancelled.

        Args:
            request: Who is told.
            child_env: The surroundings of squeue.
            job_id: The job.
            because: What of it the caller has asked for, told when it is too much.

        Returns:
            What it waits for in vain. The scheduler's first word may be another one: so only what
            is so for a while is returned. Or that Slurm has forgotten it.
        """
        told: Waiting | None = None
        in_vain_since: float | None = None
        pauses = _Pauses(trio.current_time())
        self._jobs.append(job_id)
        try:
            while True:
                waiting = await self._next(child_env, job_id, pauses)
                if waiting is None:
                    if job_id in self._missing and await is_forgotten(
                        self._tools, child_env, job_id
                    ):
                        return Waiting(FORGOTTEN)
                    continue
                if is_news(told, waiting, time.time()):
                    told = waiting
                    line = waiting_line(job_id, waiting, explained=True)
                    if because and is_too_much(waiting.reason):
                        line += f": {because}"
                    request.journal.write("info", line)
                    request.waiting(waiting)
                now = trio.current_time()
                if not is_hopeless(waiting.reason, self._give_up):
                    in_vain_since = None
                elif in_vain_since is None:
                    in_vain_since = now
                elif now - in_vain_since >= _SCHEDULER_LOOKS:
                    return waiting
        finally:
            self._jobs.remove(job_id)
            if told is not None:
                request.waiting(None)

    async def _next(self, child_env: ChildEnv, job_id: str, pauses: "_Pauses") -> Waiting | None:
        """Wait for the next answer, and ask when nobody else does; None when it is of no use."""
        answered = self._answered
        with trio.move_on_at(pauses.due):
            await answered.wait()
        if answered.is_set():
            pauses.answered(trio.current_time())
        else:
            async with self._turn:
                if not answered.is_set():  # by who had the turn
                    await self._ask(child_env)
            pauses.asked(trio.current_time())
        return self._answers.get(job_id)

    async def _ask(self, child_env: ChildEnv) -> None:
        """Ask about all jobs."""
        environment = {**child_env.environment, **_TIMES_AS_SECONDS}
        child_env = msgspec.structs.replace(child_env, environment=environment)
        answers: dict[str, Waiting] = {}
        missing: set[str] = set()
        if self._tools.squeue is not None:
            command = [self._tools.squeue, "--noheader", "--format", "%i|%T|%S|%r", "--jobs"]
            with trio.move_on_after(_ANSWER), contextlib.suppress(OSError):
                jobs = list(self._jobs)
                for first in range(0, len(jobs), _AT_ONCE):
                    some = ",".join(jobs[first : first + _AT_ONCE])
                    answer = await output_of([*command, some], child_env)
                    answers |= read_answers(answer, time.time())
                    there = {line.partition("|")[0] for line in answer.splitlines()}
                    missing.update(set(jobs[first : first + _AT_ONCE]) - there)
        self._answers, self._missing = answers, missing
        self._answered.set()
        self._answered = trio.Event()


class _Pauses:
    """When a job asks: after pauses that grow."""

    def __init__(self, now: float) -> None:
        self._pause = _FIRST_PAUSE
        self.due = now + self._pause

    def asked(self, now: float) -> None:
        """It has asked."""
        self._pause = min(max(_SECOND_PAUSE, 2 * self._pause), _LAST_PAUSE)
        self.due = now + self._pause

    def answered(self, now: float) -> None:
        """Another one has asked, and got an answer for it, too."""
        self.due = max(self.due, now + self._pause / 2)


def read_answers(text: str, now: float) -> dict[str, Waiting]:
    """Read what squeue says: a line for each job, `7|PENDING|1795268178|Resources`.

    Args:
        text: What it says.
        now: See `read_waiting`.

    Returns:
        What they wait for, by job.
    """
    found = {}
    for line in text.splitlines():
        job_id, _, answer = line.partition("|")
        if re.fullmatch("[0-9]{1,10}", job_id) and (waiting := read_waiting(answer, now)):
            found[job_id] = waiting
    return found


def read_waiting(answer: str, now: float) -> Waiting | None:
    """Read what squeue says: state, start and reason.

    Args:
        answer: `PENDING|1795268178|Resources`; the start may be `N/A`.
        now: The present moment: an estimate that has passed is none.
    """
    state, _, rest = answer.strip().partition("|")
    start, _, reason = rest.partition("|")
    if state == "CONFIGURING":  # granted, but the nodes have to boot; there is no reason then
        return Waiting("Configuring")
    if state != "PENDING" or reason in ("", "None"):
        return None
    seconds = float(start) if start.isascii() and start.isdigit() and len(start) < 12 else 0.0
    return Waiting(reason, seconds if seconds > now else None)
