"""The interface of allocations that several containers use, at once or one after the other.

The supervisor holds such an allocation in a task of its own (`supervisor.containers.held_job`).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import msgspec

from scrun.model.states import Ending
from scrun.supervisor.core.lender import Lender


class Borrowed:
    """A job that another supervisor keeps.

    Attributes:
        job_id: Its id.
        environment: Its variables.
        facts: The other facts that are needed to hold it, for JSON.
        fds: The descriptors that hold it, by name. At the lender they are the engine's; the
            borrower closes those that nobody has taken.
        lender: The connection to the lender; None at that one.
        clean: Whether the next container may have it; to be set before the block is left.
    """

    def __init__(
        self,
        job_id: str,
        environment: Mapping[str, str],
        facts: Mapping[str, Any],
        fds: dict[str, int],
        lender: Lender | None = None,
    ) -> None:
        self.job_id = job_id
        self.environment = environment
        self.facts = facts
        self.fds = fds
        self.lender = lender
        self.clean = False


Borrow = Callable[[bytes, Callable[[Ending], None]], AbstractAsyncContextManager[Borrowed | None]]
"""Holds a job that waits and suits a request (`JobPlan.needs`); None if there is none.
The second argument is called when the job is taken away."""


class WaitingJob(msgspec.Struct, frozen=True):
    """A job that waits for its next container.

    Attributes:
        job_id: Its id.
        nodes: Its nodes, as the engine writes them.
        seconds: How long it waits at most, from now on.
        options: What it was requested with.
    """

    job_id: str
    nodes: str
    seconds: float
    options: Sequence[str]


class HeldAllocation(Protocol):
    """An allocation that is held, whichever containers are in it."""

    @property
    def job_id(self) -> str:
        """The job's id, as the engine writes it."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """The job's variables (SLURM_*)."""
        ...

    @property
    def is_clean(self) -> bool:
        """Whether the job is there and runs, and its containers have left nothing in it."""
        ...

    async def serves(self, needs: bytes) -> bool:
        """Tell whether a container with such needs (`JobPlan.needs`) may have it next."""
        ...

    def waiting(self, seconds: float) -> WaitingJob:
        """Describe it while it waits."""
        ...

    def for_another(self) -> Borrowed:
        """Return what another supervisor needs to hold it, too."""
        ...
