"""A container that srun launches, of another supervisor, which has died."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import msgspec
import trio

from scrun.core.errors import EngineError
from scrun.model.states import Ending
from scrun.settings.slurm.versions import Features
from scrun.supervisor.contracts.adoption import AdoptedJob
from scrun.supervisor.contracts.engine import JobRequest, Session, Step
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.engines.deferred_container import DeferredContainer
from scrun.supervisor.engines.slurm.allocation import Allocation
from scrun.supervisor.engines.slurm.job import SrunJob
from scrun.supervisor.engines.slurm.layout import StepLayout
from scrun.supervisor.engines.slurm.node import NodeCommands
from scrun.supervisor.engines.slurm.tools import Tools
from scrun.supervisor.engines.watched import WatchedAgain

Another = Callable[[JobRequest, Inheritance], AdoptedJob]


class AdoptedSrunJob(SrunJob):
    """A job in which srun launches a container, or has done so for another supervisor.

    Attributes:
        another: Returns the same job for another container.
    """

    another: Another

    def __init__(
        self,
        tools: Tools,
        features: Features,
        commands: NodeCommands,
        request: JobRequest,
        held: Allocation,
        found: Inheritance,
    ) -> None:
        """See `SlurmJob`.

        Args:
            tools: Slurm's tools.
            features: What this version of Slurm can do.
            commands: The commands of the nodes' runtime.
            request: The container's request.
            held: The job.
            found: What the other has left for the container.
        """
        layout = msgspec.convert(found.facts["layout"], StepLayout)
        options = found.facts["options"]
        super().__init__(tools, features, commands, request, held, layout, options)
        self._found = found

    def resumed(self) -> AbstractAsyncContextManager[WatchedAgain]:
        """See `supervisor.contracts.adoption.AdoptedJob`."""
        found = self._found
        if found.job is not None:
            found.job.together.without(found.container)  # a shim of the job need not wait for it
        go_on = self._go_on if "srun" in found.facts else None
        return DeferredContainer(found, self._request.deposit, self.run, go_on).resumed()

    async def resumed_session(
        self, found: Inheritance, deposit: Deposit, running: Callable[[], None]
    ) -> Session:
        """See `supervisor.contracts.adoption.AdoptedJob`; its srun has ended with the other.

        Raises:
            EngineError: Always.
        """
        raise EngineError("a program of exec that srun launches ends with the supervisor")

    async def _go_on(self, step: Step, *, task_status: trio.TaskStatus[bool]) -> Ending:
        streams = self._streams_of(step)
        status = await self._step.run_on(self._found, step.running, streams, task_status)
        return await self._how_step_ended(status)
