"""The reasons of pending jobs, from squeue.

salloc reports that a job waits and when it goes on, but neither why nor for how long, and Slurm
has no event for either. So this polls squeue: half a second after the job entered the queue, again
until there is a reason, then after pauses that grow to a minute. It lasts only as long as somebody
waits, who would otherwise call squeue by hand; a container that was created costs nothing. Without
an answer nothing changes.

One query covers all pending jobs of the user, and a job that another one's query answers goes on
as if that were its own: a thousand jobs ask as often as one. Of jobs that come one after the
other, a bucket of tokens lets one ask every four seconds. Nobody asks for a minute when slurmctld
slows the user's tools down.

An answer stays in the root directory as long as somebody waits, for the other supervisors of the
user, who also go on as if it were theirs.

The query is `--me`: with several ids squeue fetches all jobs of the cluster. Root's `--me` does
that as well, so root asks for one job at a time. `--all` shows hidden partitions, as ids do, and
`--local` saves a request. That makes two: the other is for the partitions.

When the answers come: in 22.05 a first reason at once, and the right one after the scheduler's
first pass, within a second (PartitionConfig became PartitionTimeLimit). 24.11 may say `None` until
that pass, for up to three seconds. The estimated start comes after the next pass of the backfill
scheduler (bf_interval, 30 s), for some reasons never.
"""

import contextlib
import math
import os
import re
import stat
import time
from collections.abc import Sequence

import trio

from scrun.core.paths import real_id
from scrun.core.whole_files import write_whole
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
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.engines.slurm.job_ending import TIMES_AS_SECONDS, is_unknown
from scrun.supervisor.engines.slurm.tools import Tools

_FIRST_PAUSE, _SECOND_PAUSE, _LAST_PAUSE = 0.5, 2.0, 60.0
_SCHEDULER_LOOKS = 2.0  # within that, whatever the first answer was
_NEW = 4.0  # so long a job without a reason is asked about often: `create` waits for the answer
_BUSY = 20.0  # and so long every two seconds: a busy scheduler's first pass may be late
_ANSWER = 10.0
_SHARED, _LONGEST = "@queue", 2 << 20
_ALONE, _TOGETHER = 16, 4  # queries at once, for one job and for several
_REFILL = 4.0  # seconds for one more


class Queue:
    """The pending jobs of a supervisor, with squeue's answers."""

    def __init__(self, tools: Tools, give_up: Sequence[str] = (), root: str = "") -> None:
        """Create one, for all jobs of one engine.

        `give_up` has further reasons for which waiting is in vain (`[slurm] give_up`). Supervisors
        tell one another in `root`; "": they do not.
        """
        self._tools = tools
        self._shared = f"{root}/{_SHARED}" if root and real_id("uid") else ""
        self._give_up = give_up
        self._jobs: list[str] = []
        self._answers: dict[str, Waiting] = {}
        self._asked: set[str] = set()
        self._missing: set[str] = set()
        self._full = -math.inf  # when the bucket has all its tokens again
        self._spared = -math.inf
        self._answered = trio.Event()
        self._turn = trio.Lock()

    def spare(self) -> None:
        """Ask nothing for a while: slurmctld limits the user's requests."""
        self._spared = trio.current_time() + _LAST_PAUSE

    async def watch(
        self, request: JobRequest, child_env: ChildEnv, job_id: str, because: str = ""
    ) -> Waiting:
        """Report what a job waits for, until this is cancelled.

        Returns a reason for which waiting is in vain; only one that lasts, as the scheduler's
        first reason may change. Or `FORGOTTEN`, when Slurm does not know the job any more.
        """
        reported: Waiting | None = None
        in_vain_since: float | None = None
        lasts = _SCHEDULER_LOOKS
        pauses = _Pauses(trio.current_time())
        self._jobs.append(job_id)
        try:
            while True:
                waiting = await self._next(child_env, job_id, pauses)
                if waiting is None:
                    if job_id in self._missing and await is_unknown(
                        self._tools, child_env, job_id
                    ):
                        return Waiting(FORGOTTEN)
                    lasts = _FIRST_PAUSE  # from now on it is the scheduler's word
                    pauses.nothing_known(trio.current_time())
                    continue
                if is_news(reported, waiting, time.time()):
                    reported = waiting
                    line = waiting_line(job_id, waiting, explained=True)
                    if because and is_too_much(waiting.reason):
                        line += f": {because}"
                    request.journal.write("info", line)
                    request.on_waiting(waiting)
                now = trio.current_time()
                if not is_hopeless(waiting.reason, self._give_up):
                    in_vain_since = None
                    lasts = _FIRST_PAUSE
                    continue
                if in_vain_since is None:
                    in_vain_since = now
                elif now - in_vain_since >= lasts:
                    return waiting
                pauses.soon(now)
        finally:
            self._jobs.remove(job_id)
            if self._shared and not self._jobs:
                with contextlib.suppress(OSError):
                    os.unlink(self._shared)
            if reported is not None:
                request.on_waiting(None)

    async def _next(self, child_env: ChildEnv, job_id: str, pauses: "_Pauses") -> Waiting | None:
        """Wait for the next answer, and ask if nobody else does; None if the job is not in it."""
        while True:
            answered = self._answered
            tokens = _ALONE if len(self._jobs) == 1 else _TOGETHER
            due = max(pauses.due, self._spared, self._full - (tokens - 1) * _REFILL)
            if due > trio.current_time():
                with trio.move_on_at(due):
                    await answered.wait()
            else:
                async with self._turn:
                    if not answered.is_set():  # by the one who held the lock
                        await self._ask(child_env, job_id, pauses.fresh)
            if answered.is_set() and job_id in self._asked:
                pauses.answered(trio.current_time())
                return self._answers.get(job_id)

    async def _ask(self, child_env: ChildEnv, job_id: str, fresh: float) -> None:
        child_env = child_env.with_more(TIMES_AS_SECONDS)
        asked, which = set(self._jobs), ["--me", "--all"]
        if real_id("uid") == 0:
            asked, which = {job_id}, ["--jobs", job_id]
        answers: dict[str, Waiting] = {}
        missing: set[str] = set()
        if self._tools.squeue is not None:
            command = [self._tools.squeue, "--noheader", "--local", "--format", "%i|%T|%S|%r"]
            with trio.move_on_after(_ANSWER), contextlib.suppress(OSError):
                answer = await self._answer([*command, *which], child_env, fresh)
                answers = read_answers(answer, time.time())
                if answer[-1:] in ("", "\n"):  # else it is too long
                    missing = asked - {line.partition("|")[0] for line in answer.splitlines()}
        self._asked, self._answers, self._missing = asked, answers, missing
        self._answered.set()
        self._answered = trio.Event()

    async def _answer(self, command: Sequence[str], child_env: ChildEnv, fresh: float) -> str:
        """Ask, unless another supervisor was told less than `fresh` seconds ago."""
        head = f"{command[0]} {self._tools.conf}\n"  # which Slurm's answer it is
        if self._shared and (known := read_recent(self._shared, fresh)).startswith(head):
            return known.removeprefix(head)
        self._full = max(self._full, trio.current_time()) + _REFILL
        answer = await output_of(command, child_env)
        if self._shared and answer:
            with contextlib.suppress(OSError):
                await in_thread(write_whole, self._shared, f"{head}{answer}".encode())
        return answer


def read_recent(path: str, seconds: float) -> str:
    """Read a file that belongs to the user and was written not long ago; "" for another one."""
    with contextlib.suppress(OSError):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(path, flags), encoding="utf-8", errors="replace") as file:
            status = os.fstat(file.fileno())
            is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            if is_own and 0 <= time.time() - status.st_mtime < seconds:
                return file.read(_LONGEST)
    return ""


class _Pauses:
    """When a job asks next: after growing pauses."""

    def __init__(self, now: float) -> None:
        self._new_until = now + _NEW
        self._unknown_until = now + _BUSY
        self.soon(now)

    @property
    def fresh(self) -> float:
        """How old another supervisor's answer may be: the job was in the queue then."""
        return 0.9 * self._pause

    def soon(self, now: float) -> None:
        """Schedule the next query after the shortest pause."""
        self._pause = _FIRST_PAUSE
        self.due = now + self._pause

    def nothing_known(self, now: float) -> None:
        """Schedule the next query soon for a job that has not been in the queue for long."""
        if now < self._new_until:
            self.soon(now)
        elif now < self._unknown_until:
            self._pause = min(self._pause, _SECOND_PAUSE)
            self.due = now + self._pause

    def answered(self, now: float) -> None:
        """Schedule the next query after one, whoever asked."""
        self._pause = min(max(_SECOND_PAUSE, 2 * self._pause), _LAST_PAUSE)
        self.due = now + self._pause


def read_answers(text: str, now: float) -> dict[str, Waiting]:
    """Return what jobs wait for, from lines of squeue's: `7|PENDING|1795268178|Resources`."""
    found = {}
    for line in text.splitlines():
        job_id, _, answer = line.partition("|")
        if re.fullmatch("[0-9]{1,10}", job_id) and (waiting := read_waiting(answer, now)):
            found[job_id] = waiting
    return found


def read_waiting(answer: str, now: float) -> Waiting | None:
    """Parse one answer of squeue: `PENDING|1795268178|Resources`: state, start, reason.

    The start may be `N/A`; one before `now` is ignored.
    """
    state, _, rest = answer.strip().partition("|")
    start, _, reason = rest.partition("|")
    if state == "CONFIGURING":  # granted, but the nodes have to boot; squeue gives no reason then
        return Waiting("Configuring")
    if state != "PENDING" or reason in ("", "None"):
        return None
    seconds = float(start) if start.isascii() and start.isdigit() and len(start) < 12 else 0.0
    return Waiting(reason, seconds if seconds > now else None)
