"""A job of Slurm's that is held for the containers in it, with its shim.

To start a shim takes most of a short container's time, so it belongs to the job, as members of a
pod join and leave in any order, and waits together with it for the next container.
"""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import msgspec
import trio

from scrun.core.errors import EngineError
from scrun.supervisor.children.processes import output_of
from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.contracts.reuse import Borrowed, WaitingJob
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.core.mounts import OURS
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.engines.slurm.allocation import Allocation, with_own
from scrun.supervisor.engines.slurm.job_shim import JobShim
from scrun.supervisor.engines.slurm.needs import Needs, fits, seconds_of_limit
from scrun.supervisor.engines.slurm.tools import Tools
from scrun.supervisor.log.journal import Journal

_LATE = 1.0  # Slurm's clock of the job began before we knew of the grant
_ANSWER = 10.0


class LeaseRequest(msgspec.Struct, frozen=True):
    """What a container asks of a job that waits: one of the same cluster."""

    tools: Tools
    needs: Needs


class HeldShim:
    """The one shim of a job, held by the task that holds the job."""

    def __init__(self, nursery: trio.Nursery, journal: Journal, deposit: Deposit) -> None:
        """`journal`: leads to the messages of the containers in the job."""
        self.current: JobShim | None = None
        self._nursery = nursery
        self._journal = journal
        self._deposit = deposit
        self._scope = trio.CancelScope()
        self._gone = trio.Event()

    @asynccontextmanager
    async def opened(self, shim: JobShim, *, beside: bool) -> AsyncIterator[JobShim]:
        """Provide a shim for a container, while the block runs.

        Args:
            shim: The one that the container would have; it is begun if the job has none like it.
            beside: Whether others are in the job, whose shim stays; another one is its own then.

        Raises:
            EngineError: The job is being released.
        """
        if beside:
            if self.current is not None and self.current.takes(shim.asked):
                yield self.current
            else:
                async with shim.opened():
                    yield shim
            return
        if self.current is None or not self.current.serves_as(shim):
            await self.end()
            await self.begin(shim)
        assert self.current is not None
        yield self.current

    async def begin(self, shim: JobShim) -> None:
        """Have a shim from now on.

        Raises:
            EngineError: The job is being released.
        """
        begun = trio.Event()
        shim.journal, shim.deposit = self._journal, self._deposit
        self._scope, self._gone = trio.CancelScope(), trio.Event()
        self._nursery.start_soon(self._hold, shim, begun, self._scope, self._gone)
        await begun.wait()
        if self._gone.is_set():
            raise EngineError("the job is being released")
        self.current = shim

    async def _hold(
        self, shim: JobShim, begun: trio.Event, scope: trio.CancelScope, gone: trio.Event
    ) -> None:
        try:
            with scope, OURS.seen():
                async with shim.opened():
                    await trio.lowlevel.checkpoint_if_cancelled()
                    begun.set()
                    await trio.sleep_forever()
        finally:
            gone.set()
            begun.set()

    async def end(self) -> None:
        """Have no shim, until another one is begun."""
        if self.current is not None:
            self.current = None
            self._scope.cancel()
            await self._gone.wait()
            self._deposit.note(hello=None)


class SlurmAllocation:
    """See `supervisor.contracts.reuse.HeldAllocation`.

    Attributes:
        allocation: The job, with the variables of the container that it was sized for.
        shim: Its shim.
        sound: Whether its containers have left nothing behind in it.
    """

    def __init__(
        self, allocation: Allocation, shim: HeldShim, lease: LeaseRequest | None = None
    ) -> None:
        """`lease`: see `held`."""
        self.allocation = allocation
        self.shim = shim
        self.sound = True
        self._lease = lease
        self._limit: float | None = None
        self._limit_asked = trio.Event()
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
            lease = msgspec.json.decode(needs, type=LeaseRequest)
            if lease == self._lease:
                await self._limit_asked.wait()
                return fits(lease.needs, lease.needs, self._limit, _now() - self._since)
        return False

    def waiting(self, seconds: float) -> WaitingJob:
        nodes = self.environment.get("SLURM_JOB_NODELIST", "")
        options = () if self._lease is None else self._lease.needs.options
        return WaitingJob(self.job_id, nodes, seconds, options)

    def for_another(self) -> Borrowed:
        held = self.allocation
        return Borrowed(held.job_id, held.environment, held.facts, dict(held.fds))

    def for_tenant(self, request: JobRequest) -> Allocation:
        """Give it to the container that it is sized for from now on."""
        if self._lease is not None:
            self.allocation = with_own(self.allocation, request)
            request.job_deposit.note(environment=self.environment)
        return self.allocation

    async def ask_for_limit(self, tools: Tools, request: JobRequest) -> None:
        """Ask Slurm once: the limit may be the partition's, or be rounded."""
        try:
            if tools.squeue is not None:
                command = [tools.squeue, "--noheader", "--jobs", self.job_id, "--format=%l"]
                child_env = tools.child_env(request.child_env)
                with trio.move_on_after(_ANSWER), suppress(OSError):
                    answer = await output_of(command, child_env)
                    self._limit = seconds_of_limit(answer.strip())
        finally:
            self._limit_asked.set()


@asynccontextmanager
async def held(
    tools: Tools, request: JobRequest, allocation: Allocation, lease: LeaseRequest | None = None
) -> AsyncIterator[SlurmAllocation]:
    """Hold an allocation for containers, with what they share in it.

    Args:
        lease: What it may be used for when its first containers have ended; None: nothing.
    """
    async with unwrapped() as nursery:
        shim = HeldShim(nursery, request.journal, request.job_deposit)
        held = SlurmAllocation(allocation, shim, lease)
        if lease is not None:
            nursery.start_soon(held.ask_for_limit, tools, request)
        yield held
        nursery.cancel_scope.cancel()


def _now() -> float:
    """Return a time that no clock setting changes, and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
