"""Jobs that wait for their next container (`[slurm] linger`).

A task of the supervisor holds the job, and with it the conversation with salloc. The job has
one container at a time: that gets what salloc says. Between two of them the scope of the task has
a deadline, so nothing polls.
"""

import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec
import trio

from scrun.core.errors import AllocationRefused, described
from scrun.model.states import Ending, taken
from scrun.settings.file.load import Level, Log
from scrun.supervisor.children.processes import output_of
from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.contracts.reuse import Borrowed, WaitingJob
from scrun.supervisor.core.deposits import JOB, PassedOn, no_deposit
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.engines.slurm.allocation import Allocation
from scrun.supervisor.engines.slurm.borrowed_job import HoldAgain
from scrun.supervisor.engines.slurm.job_lease import (
    JobLease,
    JobLeaseRequest,
    borrowed_job,
    tell,
    with_own,
)
from scrun.supervisor.engines.slurm.needs import Needs, fits, seconds_of_limit
from scrun.supervisor.engines.slurm.tools import Tools
from scrun.supervisor.engines.slurm.warm_shim import WarmShim
from scrun.supervisor.log.journal import Journal, Shown
from scrun.supervisor.log.supervisor_log import fault, log

_LATE = 1.0  # Slurm's clock of the job began before we knew of the grant
_ANSWER = 10.0


Allocate = Callable[[JobRequest], AbstractAsyncContextManager[Allocation]]


class WarmJobs:
    """The jobs of an engine that wait for their next container."""

    def __init__(self, tools: Tools, linger: float, hold: HoldAgain) -> None:
        """`linger`: seconds that a job waits; 0: none does."""
        self._hold = hold
        self._tools = tools
        self._linger = linger
        self._waiting: list[_WarmJob] = []

    def list(self) -> list[WaitingJob]:
        return [kept.described() for kept in self._waiting if kept.is_usable]

    async def give_back(self, job_id: str) -> None:
        for kept in [*self._waiting]:
            if kept.job_id == job_id:
                self._waiting.remove(kept)
                await kept.release()

    @asynccontextmanager
    async def loan(
        self, request: JobRequest, needs: Needs | None, allocate: Allocate
    ) -> AsyncIterator[JobLease]:
        """Hold a job for a container: one that waits, or a new one.

        Args:
            needs: What it asks for; None: a job of its own.

        Raises:
            AllocationRefused: Slurm gave no job.
        """
        is_new = request.left is None
        if not (self._linger and is_new) or request.keep is None or needs is None:
            async with allocate(request) as held:
                yield JobLease(held)
            return
        kept = await self._take(needs)
        if kept is None:
            async with borrowed_job(request, self._tools, needs, self._hold) as loan:
                if loan is not None:
                    yield loan
                    return
            kept = _WarmJob(self._tools, needs, request, allocate, self._forget)
            request.keep(kept.run)
        else:
            tell(request, kept.job_id)
            kept.enter(request)
        loan = None
        try:
            await kept.settled.wait()
            loan = JobLease(kept.held_for(request), kept.shims)
            yield loan
        finally:
            await self._used(kept, request, clean=loan is not None and loan.is_clean(request))

    async def _used(self, kept: "_WarmJob", request: JobRequest, *, clean: bool) -> None:
        """Let a job wait after its use, or release it."""
        may_wait = clean and kept.is_usable
        kept.leave(request)
        if may_wait:
            kept.wait(self._linger)
            self._waiting.append(kept)
        else:
            with trio.CancelScope(shield=True):
                await kept.release()

    @asynccontextmanager
    async def lend(
        self, loan_request: bytes, on_lost: Callable[[Ending], None]
    ) -> AsyncIterator[Borrowed | None]:
        """Lend a job that waits to another supervisor (see `contracts.kept.KeepsJobs`)."""
        kept = None
        with contextlib.suppress(msgspec.DecodeError):
            asked = msgspec.json.decode(loan_request, type=JobLeaseRequest)
            if asked.tools == self._tools:
                kept = await self._take(asked.needs)
        if kept is None:
            yield None
            return
        request = kept.request_of_another(on_lost)
        kept.enter(request)
        borrowed = kept.for_another()
        try:
            yield borrowed
        finally:
            await self._used(kept, request, clean=borrowed.clean)

    async def _take(self, needs: Needs) -> "_WarmJob | None":
        """Take a job out of those that wait: the last one, so that the others may end."""
        for kept in [*reversed(self._waiting)]:
            if kept.needs == needs and kept in self._waiting:
                self._waiting.remove(kept)
                taken = False
                try:
                    await kept.limit_asked.wait()
                    taken = kept.is_usable and kept.fits(needs)
                finally:
                    if kept.is_usable and not taken:
                        self._waiting.append(kept)
                if taken:
                    return kept
        return None

    def _forget(self, kept: "_WarmJob") -> None:
        with contextlib.suppress(ValueError):
            self._waiting.remove(kept)


class _WarmJob:
    """A job, held by a task.

    Attributes:
        needs: What it was requested with.
        settled: Set when there is a job, or there will be none.
        limit_asked: Set when its time limit is known, or will not be.
        shims: What keeps its shim; None before there is a job.
    """

    def __init__(
        self,
        tools: Tools,
        needs: Needs,
        first: JobRequest,
        allocate: Allocate,
        forget: Callable[["_WarmJob"], None],
    ) -> None:
        self.needs = needs
        self.settled = trio.Event()
        self.limit_asked = trio.Event()
        self.shims: WarmShim | None = None
        self._tools = tools
        self._allocate = allocate
        self._forget = forget
        self._scope = trio.CancelScope()
        self._released = trio.Event()
        self._first = first
        self._tenant: JobRequest | None = first
        self._deposit = PassedOn()
        self._deposit.enter(first.job_deposit)
        self._held: Allocation | None = None
        self._failure: Exception | None = None
        self._ending: Ending | None = None
        self._suspended = False
        self._lost = False
        self._awaited = False
        self._limit: float | None = None
        self._since = 0.0

    # What a container sees

    @property
    def job_id(self) -> str:
        return "" if self._held is None else self._held.job_id

    @property
    def is_usable(self) -> bool:
        """Whether a container may use it, or the next one."""
        state = None if self._held is None else self._held.state
        gone = state is None or state.gone or state.over_memory or self._released.is_set()
        return not (gone or self._lost or self._suspended or self._scope.cancel_called)

    def fits(self, needs: Needs) -> bool:
        return fits(needs, self.needs, self._limit, _now() - self._since)

    def described(self) -> WaitingJob:
        nodes = self.environment.get("SLURM_JOB_NODELIST", "")
        left = max(0.0, self._scope.deadline - trio.current_time())
        return WaitingJob(self.job_id, nodes, left, self.needs.options)

    @property
    def environment(self) -> Mapping[str, str]:
        return {} if self._held is None else self._held.environment

    def for_another(self) -> Borrowed:
        """Return what another supervisor needs to hold it, too."""
        facts = self._deposit.facts.items()
        of_salloc = {name: fact for name, fact in facts if name.startswith("salloc")}
        return Borrowed(self.job_id, self.environment, of_salloc, self._deposit.holds(JOB))

    def request_of_another(self, on_lost: Callable[[Ending], None]) -> JobRequest:
        """Return a request that stands for a container of another supervisor."""
        return msgspec.structs.replace(
            self._first,
            on_job_id=lambda *_: None,
            on_lost=on_lost,
            on_suspended=lambda _: None,
            ending=lambda: self._ending,
            job_deposit=no_deposit("another supervisor has it"),
        )

    def enter(self, request: JobRequest) -> None:
        """Give it to a container; what salloc says goes there from now on."""
        self._scope.deadline = math.inf
        self._tenant = request
        self._deposit.enter(request.job_deposit)
        request.on_job_id(self.job_id, True)

    def leave(self, request: JobRequest) -> None:
        """Take it from its container."""
        self._ending = request.ending()
        self._tenant = None
        self._deposit.leave()

    def wait(self, seconds: float) -> None:
        """Let it wait for its next container, for so long."""
        self._scope.deadline = trio.current_time() + seconds

    async def release(self) -> None:
        """Give it back to Slurm.

        Raises:
            Exception: What went wrong with it.
        """
        known = self._failure
        self._awaited = True
        self._scope.cancel()
        await self._released.wait()
        if self._failure is not None and self._failure is not known:
            raise self._failure

    def held_for(self, request: JobRequest) -> Allocation:
        """Return the job with the variables that belong to the container.

        Raises:
            AllocationRefused: There is none.
        """
        if self._failure is not None:
            raise self._failure
        if self._held is None:
            text = f"no job for container {request.container}: the supervisor is stopping"
            raise AllocationRefused(text)
        held = with_own(self._held, request)
        request.job_deposit.note(environment=held.environment)
        return held

    # The task

    async def run(self) -> None:
        """Hold the job until it is released or its time to wait is over."""
        try:
            with self._scope:
                await self._hold()
        except Exception as error:
            self._failure = error
            if self._tenant is None and not self._awaited:
                fault(f"job {self.job_id}", error)
            elif self._held is not None:
                self._on_lost(taken("scrun-failure", f"job {self.job_id}: {described(error)}"))
        finally:
            self._forget(self)
            for event in (self.settled, self.limit_asked, self._released):
                event.set()

    async def _hold(self) -> None:
        journal = Journal("/dev/null", Log(level="quiet"), "", Shown(stderr="debug5"))
        journal.show_to(self._write)
        request = msgspec.structs.replace(
            self._first,
            journal=journal,
            on_job_id=self._on_job_id,
            on_lost=self._on_lost,
            on_suspended=self._on_suspended,
            ending=self._how_it_ended,
            job_deposit=self._deposit,
        )
        with contextlib.closing(journal):
            async with self._allocate(request) as self._held, unwrapped() as nursery:
                self._since = _now() - _LATE
                self.shims = WarmShim(nursery, journal, self._deposit)
                self.settled.set()
                await self._ask_for_limit(request)
                await trio.sleep_forever()

    async def _ask_for_limit(self, request: JobRequest) -> None:
        """Ask Slurm once: the limit may be the partition's, or be rounded."""
        try:
            if self._tools.squeue is not None:
                command = [self._tools.squeue, "--noheader", "--jobs", self.job_id]
                child_env = self._tools.child_env(request.child_env)
                with trio.move_on_after(_ANSWER), contextlib.suppress(OSError):
                    answer = await output_of([*command, "--format=%l"], child_env)
                    self._limit = seconds_of_limit(answer.strip())
        finally:
            self.limit_asked.set()

    def _how_it_ended(self) -> Ending | None:
        return self._ending if self._tenant is None else self._tenant.ending()

    def _write(self, level: Level, text: str) -> None:
        if self._tenant is not None:
            self._tenant.journal.write(level, text)
        elif level in ("fatal", "error"):
            log.error("job %s: %s", self.job_id, text)

    def _on_job_id(self, job_id: str, owned: bool) -> None:
        if self._tenant is not None:
            self._tenant.on_job_id(job_id, owned)

    def _on_lost(self, ending: Ending) -> None:
        self._lost = True
        self._forget(self)
        if self._tenant is None:
            self._scope.cancel()
        else:
            self._tenant.on_lost(ending)

    def _on_suspended(self, suspended: bool) -> None:
        self._suspended = suspended
        if self._tenant is not None:
            self._tenant.on_suspended(suspended)


def _now() -> float:
    """Return a time that no clock setting changes, and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
