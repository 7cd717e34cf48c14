"""The job of a pod, for all of its members."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import msgspec
import trio

from scrun.core.errors import AllocationRefused, described
from scrun.model.states import FATAL, Ending
from scrun.model.waiting import Waiting, waiting_line
from scrun.supervisor.contracts.engine import Job, JobRequest
from scrun.supervisor.contracts.reuse import Borrow, Keep
from scrun.supervisor.core.deposits import Deposit

Hold = Callable[[JobRequest], AbstractAsyncContextManager[Job]]
"""Holds a job: a new one, or that of a dead supervisor."""


class SharedJob:
    """The job of a pod.

    Attributes:
        first: The first member's request, with which it is requested.
        hold: Holds it.
        deposit: Keeps what it needs to outlive us.
        keys: What `Pods` finds it by.
        members: The requests of those who wait for it or are in it.
        scope: Cancelled when the job is no longer needed.
        settled: Set when there is a job, or there will be none.
        released: Set when it is released.
        job: The job, once allocated.
        failure: Why there is no job, or what went wrong with it.
    """

    def __init__(self, first: JobRequest, hold: Hold, deposit: Deposit) -> None:
        """Prepare; the first member has yet to enter."""
        self.first = first
        self.hold = hold
        self.deposit = deposit
        self.keys: list[tuple[object, str]] = []
        self.members: list[JobRequest] = []
        self.scope = trio.CancelScope()
        self.settled = trio.Event()
        self.released = trio.Event()
        self.job: Job | None = None
        self.failure: Exception | None = None
        self._endings = msgspec.convert(deposit.facts.get("endings", []), list[Ending])
        self._reusable = True
        self._job_id = ""
        self._news: Waiting | None = None

    def request(
        self, lost: Callable[[Ending], None], keep: Keep | None, borrow: Borrow | None
    ) -> JobRequest:
        """Return the first member's request, with callbacks that reach all members.

        Args:
            lost: Called when the job is taken away.
            keep: See `JobRequest`.
            borrow: Likewise.
        """
        return msgspec.structs.replace(
            self.first,
            on_job_id=self._known,
            on_lost=lost,
            on_waiting=self._waiting,
            on_suspended=self._suspended,
            ending=lambda: ending_of(self._endings),
            reusable=lambda: self._reusable,
            keep=keep,
            borrow=borrow,
            job_deposit=self.deposit,
        )

    def enter(self, member: JobRequest) -> None:
        """Add a member, and tell it what the others know."""
        self.members.append(member)
        if self._job_id:
            member.on_job_id(self._job_id, True)
        if self._news is not None:
            member.on_waiting(self._news)

    def leave(self, member: JobRequest) -> None:
        """Remove a member, and keep how it ended.

        The job is still that of the others: a member that failed may not have it released.
        """
        self.members.remove(member)
        if self._job_id and self.members:
            member.on_job_id(self._job_id, False)
        if (ending := member.ending()) is not None:
            self._endings = that_count([*self._endings, ending])
            if self.members:
                self.deposit.note(endings=msgspec.to_builtins(self._endings))
        self._reusable &= member.reusable()

    def lost(self, ending: Ending) -> None:
        """Tell the members that the job was taken away."""
        for member in [*self.members]:
            member.on_lost(ending)

    def _known(self, job_id: str, owned: bool) -> None:
        """Tell the members the job's id.

        Each records the job as its own: when the supervisor dies, all members are dead, and the
        first `delete` releases the job.
        """
        self._job_id = job_id
        for member in self.members:
            member.on_job_id(job_id, owned)

    def _waiting(self, news: Waiting | None) -> None:
        self._news = news
        for member in self.members:
            if news is not None and member is not self.first:  # the engine logs it for the first
                line = waiting_line(self._job_id, news, explained=True)
                member.journal.write("info", line)
            member.on_waiting(news)

    def _suspended(self, suspended: bool) -> None:
        for member in self.members:
            member.on_suspended(suspended)

    def refusal(self, member: JobRequest) -> Exception:
        """Return why a member gets no job."""
        if self.failure is None:  # only the supervisor's end stops its task before that is set
            text = f"no job for container {member.container}: the supervisor is stopping"
            return AllocationRefused(text)
        if member is self.first:
            return self.failure
        return AllocationRefused(
            f"no job for container {member.container}, in a pod with {self.first.container}: "
            f"{described(self.failure)}",
            getattr(self.failure, "reason", "scrun-failure"),
        )


def that_count(members: Sequence[Ending]) -> list[Ending]:
    """Leave out endings of members that do not decide how the pod ends, whoever follows."""
    by_itself = next((one for one in members if one.status - 128 not in FATAL), None)
    counting = dict.fromkeys((by_itself, ending_of(members)))
    return [one for one in counting if one is not None]


def ending_of(members: Sequence[Ending]) -> Ending | None:
    """Return how a pod ended, from the endings of its members in order.

    The first failure counts, but not those of killed members: stopping a pod kills its infra
    container, and perhaps helpers beside the one that did the work.
    """
    by_themselves = [one for one in members if one.status - 128 not in FATAL]
    failed = (one for one in by_themselves if one.status)
    return next(failed, None) or next(iter(by_themselves or reversed(members)), None)
