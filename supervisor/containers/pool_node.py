"""One node of a pool: a held job, and what its containers take of it."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from scrun.model.states import Ending, exited
from scrun.model.waiting import Waiting
from scrun.supervisor.containers.claims import Claim
from scrun.supervisor.containers.held_job import HeldJob
from scrun.supervisor.contracts.engine import Engine, JobRequest
from scrun.supervisor.contracts.reuse import HeldAllocation, PoolAllocation, Room, Taken
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.core.inheritance import AdoptionGroup, Inheritance
from scrun.supervisor.core.nurseries import unwrapped

GPUS = "gpus"
"""The fact that says which GPUs a container has."""


class PoolNode:
    """A job of one node, and the containers in it, which know nothing of each other.

    Attributes:
        held: The job; the pool itself is its first tenant.
        deposit: Keeps what it needs to outlive us, if it is kept.
        news: What it waits for, while it is pending.
        room: What it has for containers; None while it is pending.
        is_retiring: Whether no further container may have it, and the last one releases it.
        is_released: Whether it is given back.
        ended: How it was taken away, or "".
    """

    def __init__(
        self,
        engine: Engine,
        request: JobRequest,
        deposit: Deposit,
        claim: Claim,
        changed: Callable[["PoolNode"], None],
        left: Inheritance | None = None,
    ) -> None:
        """Prepare; `run` gets the job.

        Args:
            request: What the pool asks of each job.
            claim: What says that the job is a pool's; owned from now on.
            changed: Called when it is granted, when it has room again, or none any more.
            left: What another supervisor has left for the job; owned from now on.
        """
        request = msgspec.structs.replace(
            request,
            on_job_id=self._known,
            on_lost=self._lost,
            on_waiting=self._waits,
            on_suspended=lambda _: changed(self),
            ending=lambda: exited(0),
        )
        self.claim = claim
        self._engine = engine
        self._left = left
        self.held = HeldJob(engine, request, self._hold, deposit)
        self.held.enter(request)
        self.deposit = deposit
        self.news: Waiting | None = None
        self.is_retiring = False
        self.is_released = False
        self.ended = ""
        self._changed = changed
        self._allocation: PoolAllocation | None = None
        self.room: Room | None = None
        self._used = Room(0)
        self._has_all = left is None
        # by the requests themselves: a pod's seat may outlive its first one, whose id is free then
        self._seats: dict[int, tuple[JobRequest, Taken]] = {}

    @asynccontextmanager
    async def _hold(self, first: JobRequest) -> AsyncIterator[HeldAllocation]:
        try:
            async with (
                self._engine.pool_node(first, self._left) as allocation,
                unwrapped() as nursery,
            ):
                self._allocation = allocation
                self.room = allocation.room
                if self._left is not None:
                    nursery.start_soon(self._wait_for, self._left.together)
                self._changed(self)
                yield allocation.seat(Taken("", Room(0)))
                nursery.cancel_scope.cancel()
        finally:
            if self._left is not None:
                self._left.close()

    async def _wait_for(self, together: AdoptionGroup) -> None:
        """Let nobody in before those who have been there: what they have is not free."""
        await together.complete.wait()
        self._has_all = True
        self._changed(self)

    @property
    def state(self) -> str:
        """What `pool list` shows: a word, or what it waits for."""
        if self._allocation is None:
            return f"pending: {self.news.reason}" if self.news is not None else "pending"
        if self.is_retiring:
            return "ending"
        return "busy" if self._seats else "idle"

    @property
    def name(self) -> str:
        """The node's name, "" while it is pending."""
        return "" if self._allocation is None else self._allocation.node

    @property
    def free(self) -> Room:
        """What no container has taken."""
        return self._used if self.room is None else self.room - self._used

    @property
    def is_idle(self) -> bool:
        """Whether it has no container."""
        return not self._seats

    @property
    def containers(self) -> int:
        """How many it has."""
        return len(self._seats)

    def has_room(self, room: Room, seconds: float = 0) -> bool:
        """Tell whether a container may come now, which wants so much time."""
        allocation = self._allocation
        usable = allocation is not None and allocation.is_open and not self.is_retiring
        return usable and self._has_all and room.fits(self.free) and self._lasts(seconds)

    def could_have(self, room: Room, seconds: float) -> bool:
        """Tell whether a container may come some day."""
        fits = self.room is None or room.fits(self.room)
        return fits and not self.is_retiring and self._lasts(seconds)

    def _lasts(self, seconds: float) -> bool:
        return self._allocation is None or self._allocation.lasts(seconds)

    def take(self, request: JobRequest, room: Room, known: Sequence[str] | None = None) -> None:
        """Let a container in.

        Args:
            known: The GPUs that it has already.
        """
        gpus = self._free_gpus()[: room.gpus] if known is None else known
        if room.gpus:
            request.deposit.note(**{GPUS: gpus})
        seat = msgspec.structs.replace(
            request,
            on_job_id=lambda job_id, _: request.on_job_id(job_id, False),
            ending=lambda: None,  # the job does not end as one of them
        )
        self._seats[id(request)] = (seat, Taken(request.container, room, tuple(gpus)))
        self._used += room
        self.held.enter(seat)

    def leave(self, request: JobRequest) -> None:
        """Note that a container has left."""
        seat, taken = self._seats.pop(id(request))
        self._used -= taken.room
        self.held.leave(seat)
        self._changed(self)

    def _free_gpus(self) -> list[str]:
        used = {gpu for _, taken in self._seats.values() for gpu in taken.gpus}
        there = () if self._allocation is None else self._allocation.gpus
        return [gpu for gpu in there if gpu not in used]

    def seat(self, request: JobRequest) -> HeldAllocation:
        """Return the job as a container has it that is in."""
        assert self._allocation is not None
        return self._allocation.seat(self._seats[id(request)][1])

    def retire(self) -> None:
        """Have no further container."""
        self.is_retiring = True
        self._changed(self)

    def end_containers(self, ending: Ending) -> None:
        """End its containers, which release it then."""
        self.retire()
        for seat, _ in [*self._seats.values()]:
            seat.on_lost(ending)

    async def run(self) -> None:
        """Hold the job until it is released, or taken away."""
        try:
            await self.held.run(lambda: None)
        finally:
            self.claim.end()

    def _known(self, job_id: str, _: bool) -> None:
        self.claim.note(job_id)
        self._changed(self)

    def _lost(self, ending: Ending) -> None:
        self.ended = ending.text
        self.retire()

    def _waits(self, news: Waiting | None) -> None:
        self.news = news
        self._changed(self)
