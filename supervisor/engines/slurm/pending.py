"""A job that is pending: what it waits for, asked for while it does.

salloc says that a job waits, and that it goes on, but neither why nor for how long, and Slurm has
no event for either. So squeue is asked: half a second after the job came into the queue, then
after pauses that grow to a minute. That is polling, but of the kind that a person at the terminal
would do otherwise: it lasts as long as somebody waits, and a container that was created costs
nothing of it. A supervisor asks about one job at a time, and no answer changes nothing.

When which answer comes (22.05): the reason at once, and after the first look of the scheduler,
within a second, the right one (PartitionConfig became PartitionTimeLimit); the estimated start
with the next run of the backfill scheduler (bf_interval, 30 s), for some reasons never.
"""

import contextlib
import time

import msgspec
import trio

from scrun.waiting import Waiting, is_news, is_too_much, waiting_line
from supervisor.engines.base import Request
from supervisor.engines.slurm.tools import Tools
from supervisor.processes import Setting, output_of

_FIRST_PAUSE, _SECOND_PAUSE, _LAST_PAUSE = 0.5, 2.0, 60.0
_ANSWER = 10.0
_TIMES_AS_SECONDS = {"SLURM_TIME_FORMAT": "%s"}


class Queue:
    """What is known of the jobs that wait, from squeue."""

    def __init__(self, tools: Tools) -> None:
        """Ask nothing yet."""
        self._tools = tools
        self._turn = trio.Lock()

    async def watch(
        self, request: Request, setting: Setting, job_id: str, because: str = ""
    ) -> None:
        """Tell what a job waits for, until this is cancelled.

        Args:
            request: Who is told.
            setting: The surroundings of squeue.
            job_id: The job.
            because: What of it the engine's flags ask for, told when it is too much.
        """
        told: Waiting | None = None
        pause = _FIRST_PAUSE
        try:
            while True:
                await trio.sleep(pause)
                waiting = await self._ask(setting, job_id)
                if waiting is not None and is_news(told, waiting, time.time()):
                    told = waiting
                    line = waiting_line(job_id, waiting, explained=True)
                    if because and is_too_much(waiting.reason):
                        line += f": {because}"
                    request.journal.write("info", line)
                    request.waiting(waiting)
                pause = min(max(_SECOND_PAUSE, 2 * pause), _LAST_PAUSE)
        finally:
            if told is not None:
                request.waiting(None)

    async def _ask(self, setting: Setting, job_id: str) -> Waiting | None:
        """Ask about one job; None when there is no answer of use."""
        if self._tools.squeue is None:
            return None
        command = [self._tools.squeue, "--noheader", "--jobs", job_id, "--format", "%T|%S|%r"]
        environment = {**setting.environment, **_TIMES_AS_SECONDS}
        async with self._turn:
            with trio.move_on_after(_ANSWER), contextlib.suppress(OSError):
                setting = msgspec.structs.replace(setting, environment=environment)
                return read_waiting(await output_of(command, setting), time.time())
        return None


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
