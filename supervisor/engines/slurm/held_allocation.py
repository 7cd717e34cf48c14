"""A job of Slurm's that is held for the containers in it, with its shim.

To start a shim takes most of a short container's time, so it belongs to the job, as members of a
pod join and leave in any order, and waits together with it for the next container.

A job that another supervisor has lent us is held by that one, which talks with its salloc. We have
what holds it as well: when the lender dies, we hold the job alone, and release it in the end. Our
successor does the same.
"""

import math
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import msgspec
import trio

from scrun.core.errors import EngineError
from scrun.core.typed import decode_as
from scrun.supervisor.children.processes import output_of
from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.contracts.reuse import LOAN, Lender, Loan, Room, Taken, WaitingJob
from scrun.supervisor.core.deposits import JOB, Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.mounts import OURS
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.engines.slurm.allocation import Allocation, with_own
from scrun.supervisor.engines.slurm.job_shim import JobShim
from scrun.supervisor.engines.slurm.job_state import JobState
from scrun.supervisor.engines.slurm.room import PartOfNode, room_of_node
from scrun.supervisor.engines.slurm.tools import Tools
from scrun.supervisor.log.journal import Journal

# Of the time limit that Slurm has chosen, for a container that asks for none
_MOST_OF_IT = 0.9
# Plugins of Slurm's read these when a job is requested, credentials for the nodes among them
_OF_PLUGINS = ("SPANK_", "_SLURM_SPANK_", "KRB5CCNAME")
_TIME = re.compile(r"(?:(\d{1,6})-)?(\d{1,9})(?::(\d{1,6}))?(?::(\d{1,6}))?", re.ASCII)
_NO_LIMIT = ("unlimited", "infinite", "-1", "0")


class Needs(msgspec.Struct, frozen=True):
    """What a container asks of its job.

    Attributes:
        options: Options of salloc, without those that only describe this container.
        variables: Variables of `create` that Slurm's plugins may read.
        seconds: The time limit that it asks for; None if it leaves that to Slurm.
    """

    options: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()
    seconds: float | None = None


def needs_of(
    options: Sequence[str], environment: Mapping[str, str], wanted: Mapping[str, str]
) -> Needs | None:
    """Return what a container asks of its job; None if no other job can do."""
    if wanted.get("SCRUN_DEPENDENCY"):
        return None
    found = {name: text for name, text in environment.items() if name.startswith(_OF_PLUGINS)}
    seconds = None
    if limit := wanted.get("SCRUN_TIMELIMIT"):
        seconds = seconds_of_limit(limit)
        seconds = math.inf if seconds is None else seconds  # salloc knows what it means
    return Needs(tuple(options), tuple(sorted(found.items())), seconds)


def fits(asked: Needs, had: Needs, limit: float | None, used: float) -> bool:
    """Tell whether a container may use a job that was requested for another one.

    `limit` is the job's time limit in seconds, `inf` for none; None if it is not known.
    """
    if asked != had or limit is None:
        return False
    least = limit * _MOST_OF_IT if asked.seconds is None else asked.seconds
    return limit - used >= least


def seconds_of_limit(text: str) -> float | None:
    """Parse a time limit of salloc(1) or squeue(1); None for other text, `inf` for no limit."""
    if text.lower() in _NO_LIMIT:
        return math.inf
    found = _TIME.fullmatch(text)
    if not found:
        return None
    days, *parts = found.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None or len(numbers) == 3:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    else:
        hours, minutes, seconds = (0, *numbers, 0)[:3]
    return int(days or 0) * 86400.0 + hours * 3600 + minutes * 60 + seconds


_LATE = 1.0  # Slurm's clock of the job began before we knew of the grant
_ANSWER = 10.0
_Hold = Callable[[JobRequest, Inheritance], AbstractAsyncContextManager[Allocation]]
"""Holds a job by what another supervisor has left for it."""


class LeaseRequest(msgspec.Struct, frozen=True):
    """What a container asks of a job that waits: one of the same cluster."""

    tools: Tools
    needs: Needs


class HeldShim:
    """The one shim of a job.

    Attributes:
        current: The shim; None: the job has none.
        is_pooled: Whether it is for containers of a pool, which take it as it is.
    """

    def __init__(self, nursery: trio.Nursery, journal: Journal, deposit: Deposit) -> None:
        """`nursery`: the job's. `journal`: leads to the messages of the containers in it."""
        self.current: JobShim | None = None
        self.is_pooled = False
        self._nursery = nursery
        self._journal = journal
        self._deposit = deposit
        self._is_closed = False

    @asynccontextmanager
    async def opened(self, shim: JobShim, *, beside: bool) -> AsyncIterator[JobShim]:
        """Provide a shim for a container, while the block runs.

        Args:
            shim: The one that the container would have; it is begun if the job has none like it.
            beside: Whether others are in the job, whose shim stays; another one is its own then.

        Raises:
            EngineError: The job is being released.
        """
        current = self.current
        if self.is_pooled and current is not None:
            yield current
        elif not beside and (current is None or not current.serves_as(shim)):
            await self.end()
            self.begin(shim)
            yield shim
        elif current is not None and (not beside or current.takes(shim.asked)):
            yield current
        else:
            async with shim.opened():
                yield shim

    def begin(self, shim: JobShim) -> None:
        """Have a shim from now on; raises EngineError if the job is being released."""
        if self._is_closed:
            raise EngineError("the job is being released")
        shim.journal, shim.deposit = self._journal, self._deposit
        with OURS.seen():
            shim.begin(self._nursery)
        self.current = shim

    async def end(self) -> None:
        """Have no shim, until another one is begun."""
        if self.current is not None:
            shim, self.current = self.current, None
            with trio.CancelScope(shield=True):
                await shim.end()
            self._deposit.note(hello=None)

    async def close(self) -> None:
        """Have no shim any more."""
        self._is_closed = True
        await self.end()


class SlurmAllocation:
    """See `supervisor.contracts.reuse`: `HeldAllocation`, `PoolAllocation`.

    Attributes:
        allocation: The job, with the variables of the container that it was sized for.
        sound: Whether its containers have left nothing behind in it.
        ends: When it ends, in seconds since the epoch, as far as a pool has asked.
        gpus: Its GPUs, as far as a pool has asked.
    """

    def __init__(
        self, allocation: Allocation, shim: HeldShim, lease: LeaseRequest | None = None
    ) -> None:
        self.allocation = allocation
        self.shim = shim
        self.sound = True
        self._lease = lease
        self._limit: float | None = None
        self._limit_asked = trio.Event()
        self.ends = math.inf
        self.gpus: Sequence[str] = ()
        self._since = _now() - _LATE

    @property
    def job_id(self) -> str:
        return self.allocation.job_id

    @property
    def environment(self) -> Mapping[str, str]:
        return self.allocation.environment

    @property
    def is_clean(self) -> bool:
        state = self.allocation.state
        gone = state is None or state.gone or state.over_memory or state.suspended
        return self.sound and not gone

    async def serves(self, needs: bytes) -> bool:
        with suppress(msgspec.DecodeError):
            lease = decode_as(needs, LeaseRequest)
            if lease == self._lease:
                await self._limit_asked.wait()
                return fits(lease.needs, lease.needs, self._limit, _now() - self._since)
        return False

    def waiting(self, seconds: float) -> WaitingJob:
        nodes = self.environment.get("SLURM_JOB_NODELIST", "")
        options = () if self._lease is None else self._lease.needs.options
        return WaitingJob(self.job_id, nodes, seconds, options)

    def for_another(self) -> Loan:
        job = {"job": self.job_id, "environment": self.allocation.environment}
        return Loan({**self.allocation.facts, **job}, self.allocation.fds)

    @property
    def is_open(self) -> bool:
        state = self.allocation.state
        return state is not None and not (state.gone or state.suspended)

    @property
    def node(self) -> str:
        return self.environment.get("SLURM_JOB_NODELIST", "")

    @property
    def room(self) -> Room:
        return room_of_node(self.environment, len(self.gpus))

    def lasts(self, seconds: float) -> bool:
        return not seconds or time.time() + seconds <= self.ends

    def seat(self, taken: Taken) -> "SlurmAllocation":
        """See `supervisor.contracts.reuse.PoolAllocation`."""
        part = PartOfNode(taken, self.room.processors, bool(self.gpus))
        allocation = msgspec.structs.replace(self.allocation, part=part)
        return SlurmAllocation(allocation, self.shim)

    def for_tenant(self, request: JobRequest) -> Allocation:
        """Give it to the container that it is sized for from now on."""
        if self._lease is not None or self.shim.is_pooled:
            self.allocation = with_own(self.allocation, request)
            request.job_deposit.note(environment=self.environment)
        return self.allocation

    async def ask_for_limit(self, tools: Tools, request: JobRequest) -> None:
        """Ask Slurm once: the limit may be the partition's, or be rounded."""
        try:
            self._limit = await self._asked(tools, request, "%l")
        finally:
            self._limit_asked.set()

    async def ask_for_end(self, tools: Tools, request: JobRequest) -> None:
        """Ask Slurm once when the job ends; without an answer it has no end."""
        if (left := await self._asked(tools, request, "%L")) is not None:
            self.ends = time.time() + left

    async def _asked(self, tools: Tools, request: JobRequest, what: str) -> float | None:
        """Return a time that squeue tells of the job, in seconds; None if it does not."""
        if tools.squeue is not None:
            command = [tools.squeue, "--local", "--noheader", f"--format={what}"]
            command += ["--jobs", self.job_id]
            child_env = tools.child_env(request.child_env)
            with trio.move_on_after(_ANSWER), suppress(OSError):
                answer = await output_of(command, child_env)
                return seconds_of_limit(answer.strip())
        return None


@asynccontextmanager
async def held(
    tools: Tools, request: JobRequest, allocation: Allocation, lease: LeaseRequest | None = None
) -> AsyncIterator[SlurmAllocation]:
    """Hold an allocation for containers; with a lease others may use it when these have ended."""
    async with unwrapped() as nursery:
        shim = HeldShim(nursery, request.journal, request.job_deposit)
        held = SlurmAllocation(allocation, shim, lease)
        if lease is not None:
            nursery.start_soon(held.ask_for_limit, tools, request)
        try:
            yield held
        finally:
            await shim.close()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def lent(
    request: JobRequest,
    found: Inheritance,
    hold: _Hold,
    is_clean: Callable[[], bool] = lambda: False,
) -> AsyncIterator[Allocation]:
    """Hold a job that is lent to us, or was to a supervisor that has died.

    Args:
        found: What holds the job, and the connection to the lender; the descriptors that nobody
            has taken stay the caller's.
        is_clean: Tells in the end whether the lender may have it again; else Slurm gets it.
    """
    facts, over, state = found.facts, trio.Event(), JobState()
    state.is_job(facts["job"])  # all that salloc has said to us
    request.on_job_id(facts["job"], False)
    lender = Lender(socket.socket(fileno=found.take(LOAN)))
    try:
        async with unwrapped() as nursery:
            nursery.start_soon(lender.watch, request.on_lost)

            @nursery.start_soon
            async def hold_alone() -> None:
                await lender.gone.wait()
                with trio.CancelScope(shield=True):
                    async with hold(request, found):
                        await over.wait()

            try:
                yield Allocation(facts["job"], facts["environment"], state)
            finally:
                over.set()
                request.job_deposit.drop(JOB)
                if not lender.gone.is_set():
                    nursery.cancel_scope.cancel()
    finally:
        if is_clean():
            await lender.give_back()
        lender.close()


def borrowed_job(
    request: JobRequest, found: Inheritance, hold: _Hold, is_clean: Callable[[], bool]
) -> AbstractAsyncContextManager[Allocation]:
    """Hold a job that another supervisor keeps; see `lent`."""
    theirs = Allocation(found.facts["job"], found.facts["environment"])
    found.facts["environment"] = with_own(theirs, request).environment
    request.job_deposit.hold(found.fds, **found.facts)
    return lent(request, found, hold, is_clean)


def _now() -> float:
    """Return a time that no clock setting changes, and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
