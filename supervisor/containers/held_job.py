"""A job that the supervisor holds for the containers in it, its tenants.

A task of the server holds it, not one of the tenants: these come and go in any order, and all get
every event. A job that may linger waits for its next tenant when the last one has left: the scope
of its task has a deadline then, so nothing polls.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager

import msgspec
import trio

from scrun.core.errors import AllocationRefused, ScrunError, described
from scrun.core.typed import convert
from scrun.model.states import FATAL, Ending, taken
from scrun.model.waiting import Waiting, waiting_line
from scrun.settings.file.load import Level, Log
from scrun.supervisor.contracts.engine import Engine, JobRequest
from scrun.supervisor.contracts.reuse import HeldAllocation, WaitingJob
from scrun.supervisor.core.deposits import Deposit, no_deposit
from scrun.supervisor.core.mounts import OURS
from scrun.supervisor.core.threads import own_threads
from scrun.supervisor.log.journal import Journal, Shown
from scrun.supervisor.log.supervisor_log import fault, log

Hold = Callable[[JobRequest], AbstractAsyncContextManager[HeldAllocation]]
"""Holds a job: a new one, or that of a dead supervisor."""


class HeldJob:
    """A job, and the task that holds it.

    Attributes:
        engine: Whose it is.
        first: The request of the tenant who came when nobody was in it: it is sized by that.
        deposit: Keeps what it needs to outlive us.
        linger: Seconds for which it waits for its next tenant; 0: it does not.
        tenants: The requests of those who wait for it or are in it.
        settled: Set when there is a job, or there will be none.
        ready: Set when others may join `first` in it.
        allocation: The job, once allocated.
        failure: Why there is no job, or what went wrong with it.
        job_id: Its id, "" while unknown.
    """

    def __init__(
        self,
        engine: Engine,
        first: JobRequest,
        hold: Hold,
        deposit: Deposit,
        linger: float = 0,
    ) -> None:
        self.engine = engine
        self.first = first
        self.deposit = deposit
        self.linger = linger
        self.tenants: list[JobRequest] = []
        self.settled, self.ready = trio.Event(), trio.Event()
        self.allocation: HeldAllocation | None = None
        self.failure: Exception | None = None
        self._hold = hold
        self._scope = trio.CancelScope()
        self._released = trio.Event()
        self._endings = convert(deposit.facts.get("endings", []), list[Ending])
        self._reusable = True
        self._is_lost = False
        self._is_awaited = False
        self.job_id = ""
        self._news: Waiting | None = None
        self._forget: Callable[[], None] = lambda: None

    # What a tenant sees

    def enter(self, tenant: JobRequest) -> None:
        """Add a tenant, and tell it what the others know."""
        if self.allocation is not None and not self.tenants:  # it has waited for this one
            self.first, self._endings, self._reusable = tenant, [], True
            self._scope.deadline, self.ready = math.inf, trio.Event()
            if "endings" in self.deposit.facts:
                self.deposit.note(endings=[])
        self.tenants.append(tenant)
        if self.job_id:
            tenant.on_job_id(self.job_id, True)
        if self._news is not None:
            tenant.on_waiting(self._news)

    def leave(self, tenant: JobRequest) -> None:
        """Remove a tenant, and keep how it ended.

        The job is still that of the others: a tenant that failed may not release it.
        """
        self.tenants.remove(tenant)
        if tenant is self.first:
            self.ready.set()
        if self.job_id and self.tenants:
            tenant.on_job_id(self.job_id, False)
        if (ending := tenant.ending()) is not None:
            self._endings = that_count([*self._endings, ending])
            if self.tenants:
                self.deposit.note(endings=msgspec.to_builtins(self._endings))
        self._reusable &= tenant.reusable()

    def stand_in(
        self, on_lost: Callable[[Ending], None], is_clean: Callable[[], bool]
    ) -> JobRequest:
        """Return a request that stands for a container of another supervisor."""
        last = ending_of(self._endings)
        return msgspec.structs.replace(
            self.first,
            on_job_id=lambda *_: None,
            on_lost=on_lost,
            on_waiting=lambda _: None,
            on_suspended=lambda _: None,
            ending=lambda: last,
            reusable=is_clean,
            deposit=no_deposit("another supervisor has it"),
        )

    def refusal(self, tenant: JobRequest) -> Exception:
        """Return why a tenant gets no job."""
        if self.failure is None:  # only the supervisor's end stops its task before that is set
            text = f"no job for container {tenant.container}: the supervisor is stopping"
            return AllocationRefused(text)
        if tenant is self.first:
            return self.failure
        return AllocationRefused(
            f"no job for container {tenant.container}, in a pod with {self.first.container}: "
            f"{described(self.failure)}",
            getattr(self.failure, "reason", "scrun-failure"),
        )

    # Between two tenants

    @property
    def is_usable(self) -> bool:
        """Whether a container may have it next."""
        over = self._is_lost or self._scope.cancel_called or self._released.is_set()
        return self.allocation is not None and self.allocation.is_clean and not over

    @property
    def may_wait(self) -> bool:
        """Whether it may wait for its next tenant: nobody had to end or clean up anything."""
        return bool(self.linger) and self._reusable and self.is_usable

    def wait(self) -> None:
        """Let it wait, for as long as it may; nothing of it outlives us meanwhile."""
        self.deposit.rest()
        self._scope.deadline = trio.current_time() + self.linger

    def waiting(self) -> WaitingJob:
        assert self.allocation is not None
        return self.allocation.waiting(max(0.0, self._scope.deadline - trio.current_time()))

    async def release(self) -> None:
        """Give it back; the engine has deadlines for that.

        The last tenant reports what goes wrong, and its record keeps the job.

        Raises:
            Exception: What went wrong with it.
        """
        self._forget()
        self.deposit.end()
        known = self.failure
        self._is_awaited = True
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._released.wait()
        is_news = self.allocation is not None or self.failure is not known
        if self.failure is not None and is_news:
            raise self.failure

    # The task

    async def run(self, forget: Callable[[], None]) -> None:
        """Hold the job until it is released, or has waited long enough. Errors go to its tenants.

        Args:
            forget: Called when no further container may have it.
        """
        own_threads()
        self._forget = forget
        try:
            with self._scope, OURS.seen(), self._journal() as journal:
                async with self._hold(self._request(journal)) as self.allocation:
                    self.settled.set()
                    await trio.sleep_forever()
        except Exception as error:
            self.failure = error
            if not (isinstance(error, ScrunError) and (self.tenants or self._is_awaited)):
                fault(f"job {self.job_id or f'of container {self.first.container}'}", error)
            if self.allocation is not None:
                self._lost(taken("scrun-failure", f"job {self.job_id}: {described(error)}"))
        finally:
            forget()
            self.deposit.end()
            self.settled.set()
            self._released.set()

    def _request(self, journal: Journal) -> JobRequest:
        """Return the first tenant's request, with callbacks that reach all tenants."""
        return msgspec.structs.replace(
            self.first,
            journal=journal,
            on_job_id=self._known,
            on_lost=self._lost,
            on_waiting=self._waiting,
            on_suspended=self._suspended,
            ending=lambda: ending_of(self._endings),
            reusable=lambda: self._reusable,
            job_deposit=self.deposit,
        )

    @contextlib.contextmanager
    def _journal(self) -> Iterator[Journal]:
        """Yield where messages go: to the first tenant; to those that follow it if it waits."""
        if not self.linger:
            yield self.first.journal
            return
        journal = Journal("/dev/null", Log(level="quiet"), "", Shown(stderr="debug5"))
        journal.show_to(self._write)
        with contextlib.closing(journal):
            yield journal

    def _write(self, level: Level, text: str) -> None:
        if self.tenants:
            self.tenants[0].journal.write(level, text)
        elif level in ("fatal", "error"):
            log.error("job %s: %s", self.job_id, text)

    def _known(self, job_id: str, owned: bool) -> None:
        """Tell the tenants the job's id.

        Each records the job as its own: when the supervisor dies, all tenants are dead, and the
        first `delete` releases the job.
        """
        self.job_id = job_id
        for tenant in self.tenants:
            tenant.on_job_id(job_id, owned)

    def _waiting(self, news: Waiting | None) -> None:
        self._news = news
        for tenant in self.tenants:
            if news is not None and tenant is not self.first:  # the engine logs it for the first
                line = waiting_line(self.job_id, news, explained=True)
                tenant.journal.write("info", line)
            tenant.on_waiting(news)

    def _suspended(self, suspended: bool) -> None:
        for tenant in self.tenants:
            tenant.on_suspended(suspended)

    def _lost(self, ending: Ending) -> None:
        """Tell the tenants that the job was taken away."""
        self._is_lost = True
        self._forget()
        if not self.tenants:
            self._scope.cancel()
        for tenant in [*self.tenants]:
            tenant.on_lost(ending)


def that_count(tenants: Sequence[Ending]) -> list[Ending]:
    """Leave out endings of tenants that do not decide how the pod ends, whoever follows."""
    by_itself = next((one for one in tenants if one.status - 128 not in FATAL), None)
    counting = dict.fromkeys((by_itself, ending_of(tenants)))
    return [one for one in counting if one is not None]


def ending_of(tenants: Sequence[Ending]) -> Ending | None:
    """Return how a pod ended, from the endings of its members in order.

    The first failure counts, but not those of killed members: stopping a pod kills its infra
    container, and perhaps helpers beside the one that did the work.
    """
    by_themselves = [one for one in tenants if one.status - 128 not in FATAL]
    failed = (one for one in by_themselves if one.status)
    return next(failed, None) or next(iter(by_themselves or reversed(tenants)), None)
