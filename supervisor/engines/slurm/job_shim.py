"""The shims of a job, which make the containers there.

A container that arrives after the shim has gone, for example killed by an administrator, gets a
new one.

Each task of several, which MPI calls a rank, is a container of its own with a shim of its own: so
its variables and descriptors are those that slurmstepd gives that task.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from scrun.supervisor.core.deposits import no_deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.engines.slurm.job import JobParts, step_of
from scrun.supervisor.engines.slurm.job_state import JobState
from scrun.supervisor.engines.slurm.neighbours import Neighbours
from scrun.supervisor.engines.slurm.shim_site import SiteConfs
from scrun.supervisor.engines.slurm.shim_step import RanksStep, ShimStep
from scrun.supervisor.engines.slurm.step import SrunStep
from scrun.supervisor.engines.slurm.tools import of_a_container, of_the_job
from scrun.supervisor.nodes.beginning import Direct

_FOR_SRUN = ("SLURM", "SPANK_", "_SLURM_SPANK_", "PMI")


class JobShim:
    """The shim of a job, or those of the tasks of one container.

    Attributes:
        is_gathered: Whether each task has one of its own, which connects to us; so has a task
            whose lines are labelled.
        asked: What was asked for its step, by SCRUN_* variable.
        salloc: The state of the job, if scrun allocated it.
        neighbours: The containers that it has.
        journal: Where messages about it go.
        deposit: Keeps what the job needs to outlive us.
        old_step: The step that another supervisor has begun, if one did; it may have ended.
        mounted: See `supervisor.contracts.engine.Job.mounted`.
    """

    old_step: ShimStep

    def __init__(
        self,
        parts: JobParts,
        direct: Callable[[], Direct],
        asked: Mapping[str, str],
        confs: SiteConfs,
        found: Inheritance | None = None,
    ) -> None:
        """Describe them; `opened` starts them.

        Args:
            parts: Those of the container that brings them.
            found: What another supervisor has left of the job, which has started its shim.
        """
        self._found = found
        tools, request, held, layout = parts.tools, parts.request, parts.held, parts.layout
        self.is_gathered = layout.tasks != 1 or "--label" in parts.options
        self.asked = asked
        self.salloc: JobState | None = held.state
        self._tools = tools
        self.journal = request.journal
        self.deposit = request.job_deposit
        if self.is_gathered:
            self.deposit = no_deposit("it has several shims")
        elif request.beside is not None:
            self.deposit = no_deposit("it has its own step in another container's job")
        nodes = held.environment.get("SLURM_JOB_NODELIST", "")
        self._node = "" if set(nodes) & set(",[") else nodes
        self._direct = direct
        self._confs = confs
        self._variables = of_the_job(held.environment)
        self._variables |= request.plugin_variables
        self._tasks = layout.tasks
        self._words = [*step_of(held), *layout.arguments, "--overlap"]
        if layout.nodes != 1:
            self._words.append("--no-kill")
        # with a pseudo-terminal, or labels, frames would not arrive as they were sent
        self._words += [word for word in parts.options if word not in ("--label", "--unbuffered")]
        shape = msgspec.to_builtins(layout)
        self.deposit.note(asked=dict(asked), options=[*parts.options], layout=shape)
        self._child_env = tools.child_env(request.child_env)
        self.neighbours = Neighbours()
        self.mounted: set[Any] = set()
        self._steps: list[ShimStep] = []
        self._nursery: trio.Nursery | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["JobShim"]:
        """Start it, and end it when the block is left."""
        async with unwrapped() as nursery:
            self.begin(nursery)
            try:
                yield self
            finally:
                with trio.CancelScope(shield=True):
                    await self.end()

    def begin(self, nursery: trio.Nursery) -> None:
        """Start it; the nursery waits until `end`."""
        self._nursery = nursery
        self._begin(nursery)

    async def end(self) -> None:
        """End it, with all that it made."""
        self._nursery = None
        for step in self._steps:
            await step.leave()

    def serves_as(self, other: "JobShim") -> bool:
        """Tell whether another one, of the same job, would be as this one, which works.

        One for MPI is not: what a step has for that is for its first container.
        """
        mpi = self.asked.get("SCRUN_MPI_TYPE", "").lower() not in ("", "none")
        return self.is_of_use and not mpi and self._needs() == other._needs()

    @property
    def is_of_use(self) -> bool:
        """Whether it makes containers, or will do so."""
        return self._steps[-1].is_of_use

    def takes(self, asked: Mapping[str, str]) -> bool:
        """Tell whether it can make one more container, with the same requests, for a pod."""
        site = self._steps[-1].site
        tells_apart = not self.is_gathered and (site is None or site.tells_apart)
        return tells_apart and self.asked == asked

    def _needs(self) -> tuple[object, ...]:
        """Return what a container may notice of its shim's step."""
        own = of_a_container(self._variables)
        variables = {name: text for name, text in self._variables.items() if name not in own}
        for_srun = {
            name: text
            for name, text in self._child_env.environment.items()
            if name.startswith(_FOR_SRUN)
        }
        env = self._child_env
        return (self.asked, self._words, variables, for_srun, env.limits, env.umask, env.prefix)

    def step(self) -> ShimStep:
        """Return its step; that of a new one, if the last has gone."""
        if not self.is_of_use and self._nursery is not None:
            self._begin(self._nursery)
        return self._steps[-1]

    def _begin(self, nursery: trio.Nursery) -> None:
        srun = SrunStep(self._tools, self._child_env, self.journal, self._tasks)
        how = (srun, self.journal, self._direct, self._confs)
        if self.is_gathered:
            step: ShimStep = RanksStep(*how, self._tasks)
        elif (found := self._found) is not None:
            self._found, step = None, ShimStep(*how, "", self.deposit, found)
            self.old_step = step
        else:
            step = ShimStep(*how, self._node, self.deposit)
        self._steps = [older for older in self._steps if not older.is_over] + [step]
        nursery.start_soon(step.run, self._words, self._variables)
