"""The interface of jobs that outlive their container, to serve the next one.

An engine that keeps jobs holds each in a task of the supervisor's, which the supervisor outlives.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

Keep = Callable[[Callable[[], Awaitable[None]]], None]
"""Starts a task that holds a job. The supervisor stays until the task has ended, and cancels it
when it has to end itself."""


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

    async def give_back(self, job_id: str) -> None:
        """Release a job that waits for its next container; return when it is released.

        Raises:
            EngineError: The engine cannot be reached; the job may still exist.
        """
        ...
