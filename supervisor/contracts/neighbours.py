"""The interface of engines and jobs that several containers share; optional."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import msgspec

from scrun.supervisor.contracts.engine import Job, JobRequest
from scrun.supervisor.contracts.reuse import HeldAllocation
from scrun.supervisor.core.inheritance import Inheritance


@runtime_checkable
class SharesNamespaces(Protocol):
    """A job whose container can enter namespaces of others in it."""

    def entered(self) -> AbstractContextManager[None]:
        """Let the others know of the container while the block runs."""
        ...

    async def neighbours(self) -> Mapping[str, Mapping[str, Any]]:
        """Wait until the containers of `JobRequest.joins` are created or have ended.

        Returns:
            The config.json of each that the nodes have, by its directory there.
        """
        ...


class JobPlan(msgspec.Struct, frozen=True):
    """How one container gets a job, before that is requested.

    Attributes:
        hold: Holds an allocation while the block runs: a new one; or what another supervisor
            lends us (`Borrow`), or has left, in which it made nothing. Raises AllocationRefused
            with the engine's reason.
        job: Provides an allocation for the container of this plan.
        needs: What it asks of its job, in the words of the engine, for `HeldAllocation.serves` of
            this supervisor or another; empty: only a new job will do.
        linger: Seconds for which its job may wait for the next container; 0: it does not wait.
    """

    hold: Callable[[JobRequest, Inheritance | None], AbstractAsyncContextManager[HeldAllocation]]
    job: Callable[[JobRequest, HeldAllocation], AbstractAsyncContextManager[Job]]
    needs: bytes = b""
    linger: float = 0


@runtime_checkable
class SharesJobs(Protocol):
    """An engine whose jobs several containers may use; optional."""

    async def plan(self, request: JobRequest) -> JobPlan:
        """Decide what to ask for.

        Raises:
            SettingsError: A request cannot be fulfilled.
            EngineUnavailable: The engine cannot be used.
        """
        ...

    def held_again(
        self, request: JobRequest, left: Inheritance
    ) -> AbstractAsyncContextManager[HeldAllocation]:
        """Hold a job that another supervisor has held, with the containers in it.

        Args:
            left: What it has left for the job; owned from now on.
        """
        ...
