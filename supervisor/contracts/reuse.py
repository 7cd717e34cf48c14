"""The interface of jobs that outlive their container, to serve the next one.

An engine that keeps jobs holds each in a task of the supervisor's, which the supervisor outlives.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

import msgspec

from scrun.model.states import Ending
from scrun.supervisor.core.lender import Lender

Keep = Callable[[Callable[[], Awaitable[None]]], None]
"""Starts a task that holds a job. The supervisor stays until the task has ended, and cancels it
when it has to end itself."""


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
"""Holds a job that waits and suits a request, in the words of its engine; None if there is none.
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


@runtime_checkable
class KeepsJobs(Protocol):
    """An engine that keeps jobs; optional."""

    def waiting_jobs(self) -> list[WaitingJob]:
        """Return the jobs that wait for their next container."""
        ...

    def lend(
        self, loan_request: bytes, on_lost: Callable[[Ending], None]
    ) -> AbstractAsyncContextManager[Borrowed | None]:
        """See `Borrow`; the request comes from another supervisor of the user's."""
        ...

    async def give_back(self, job_id: str) -> None:
        """Release a job that waits for its next container; return when it is released.

        Raises:
            EngineError: The engine cannot be reached; the job may still exist.
        """
        ...
