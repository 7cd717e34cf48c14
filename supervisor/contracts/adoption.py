"""The interface of engines whose containers outlive their supervisor; optional."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from scrun.supervisor.contracts.engine import Engine, Job, JobRequest, Session, Step
from scrun.supervisor.contracts.first_process import FirstProcess
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.core.inheritance import Inheritance


class ResumedProcess(FirstProcess, Protocol):
    """The first process of a container that another supervisor has made.

    Attributes:
        is_started: Whether its program was started.
    """

    is_started: bool


class AdoptedJob(Job, Protocol):
    """A job whose container another supervisor has made, which has died."""

    def resumed(self) -> AbstractAsyncContextManager["ResumedProcess"]:
        """Go on with its container, which is ended when the block is left."""
        ...

    async def resumed_session(
        self, found: Inheritance, deposit: Deposit, running: Callable[[], None]
    ) -> Session:
        """Go on with a program of `exec` in the container; `resumed` waits for it.

        Args:
            found: What the other has left for it.
            deposit: Keeps it further.
            running: Called when it can get signals.
        """
        ...


@runtime_checkable
class KeepsStep(Protocol):
    """A job that creates its container only when it runs, and can be adopted before that, too."""

    def keep(self, step: Step) -> None:
        """Keep what its container needs to outlive us, from now on until it has ended."""
        ...


@runtime_checkable
class Adopts(Engine, Protocol):
    """An engine whose containers outlive the supervisor; optional."""

    def adopted(
        self, request: JobRequest, found: Inheritance
    ) -> AbstractAsyncContextManager[AdoptedJob]:
        """Hold a job that another supervisor has held; release it when the block is left.

        Args:
            request: The request for the job, as the other has made it; with `beside`, for a
                container in that job.
            found: What the other has left for the container. If there is `found.job`, that is
                owned from now on, unless there is `beside`; and `resumed` waits for all
                containers of `found.job.together`.
        """
        ...
