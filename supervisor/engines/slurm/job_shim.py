"""The shims of a job, which make the containers there, and what others need of those.

A container that arrives after the shim has gone, for example killed by an administrator, gets a
new one.

Each task of several, which MPI calls a rank, is a container of its own with a shim of its own: so
its variables and descriptors are those that slurmstepd gives that task.
"""

import os.path
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import trio

from scrun.core.errors import EngineError
from scrun.supervisor.core.deposits import no_deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.engines.slurm.job import JobParts, step_of
from scrun.supervisor.engines.slurm.job_state import JobState
from scrun.supervisor.engines.slurm.shim_site import SiteConfs
from scrun.supervisor.engines.slurm.shim_step import RanksStep, ShimStep
from scrun.supervisor.engines.slurm.step import SrunStep
from scrun.supervisor.engines.slurm.tools import of_a_container, of_the_job
from scrun.supervisor.nodes.beginning import Direct

_ASKED_FOR = ("namespaces", "uidMappings", "gidMappings")
"""What others ask for of a container's config.json (`supervisor.staging.policy`)."""


class ContainerOnNode:
    """What is known of a container on the node.

    Attributes:
        id: The shim's id of the container; "" before it has one.
        config: The config.json that the runtime got.
        settled: Set when it is created, or never will be.
        begun: Set when it is started, or has ended.
        there: Whether it is there: created, and not ended.
        joins: The shim's ids of the containers whose namespaces it is in, by the types of these.
    """

    def __init__(self, step: ShimStep) -> None:
        self.step = step
        self.id = ""
        self.config: dict[str, Any] = {}
        self.settled = trio.Event()
        self.begun = trio.Event()
        self.there = False
        self.joins: dict[str, str] = {}

    def has_network(self) -> None:
        """Note that it has got a network namespace of its own."""
        namespaces = self.config["linux"].setdefault("namespaces", [])
        if not any(one["type"] == "network" for one in namespaces):
            namespaces.append({"type": "network"})

    def for_neighbours(self) -> dict[str, Any]:
        """Return what its neighbours have to know, for JSON."""
        linux = self.config.get("linux") or {}
        config = {"linux": {key: linux[key] for key in _ASKED_FOR if key in linux}}
        return {"config": config, "joins": self.joins}

    def recall(self, known: Mapping[str, Any]) -> None:
        """Take what `for_neighbours` has returned, to another supervisor."""
        self.config, self.joins = known["config"], known["joins"]

    def is_made(self, begun: trio.Event) -> None:
        """Note that it is created; the event is set when it is started."""
        self.there, self.begun = True, begun
        self.settled.set()

    def is_over(self) -> None:
        """Note that it has ended, or never will be."""
        self.there = False
        self.settled.set()


class Neighbours:
    """The containers of a job, by their ids."""

    def __init__(self) -> None:
        self._places: dict[str, ContainerOnNode] = {}

    @contextmanager
    def holding(self, container: str, place: ContainerOnNode) -> Iterator[None]:
        """Let others know of a container while the block runs."""
        self._places[container] = place
        try:
            yield
        finally:
            place.is_over()
            del self._places[container]

    def are_none(self, place: ContainerOnNode) -> bool:
        """Tell whether no other container has the same shim."""
        others = (other for other in self._places.values() if other is not place)
        return all(other.step is not place.step for other in others)

    async def configs(
        self, place: ContainerOnNode, joins: Mapping[str, str]
    ) -> dict[str, Mapping[str, Any]]:
        found: dict[str, Mapping[str, Any]] = {}
        for where, container in joins.items():
            other = self._places.get(container)
            if other is not None and other.step is place.step:
                await other.settled.wait()
                if other.there:
                    found[where] = other.config
        return found

    async def joined(self, place: ContainerOnNode, joins: Mapping[str, str]) -> None:
        """Take the paths of other containers' namespaces out of a container's config.json.

        Those must be started: before that, their first process is the runtime's, which an ordinary
        user may not look into. The place's config and joins are changed. Raises EngineError if one
        of the others has ended.
        """
        for namespace in (place.config.get("linux") or {}).get("namespaces") or []:
            container = joins.get(os.path.dirname(namespace.get("path") or ""))
            if container is None:
                continue
            other = await self._begun(container, namespace["type"])
            del namespace["path"]
            place.joins[namespace["type"]] = other.id

    async def entered(self, joins: Mapping[str, str], where: str) -> str:
        """Return the shim's id of a container whose user namespace another one enters."""
        return (await self._begun(joins[where], "user")).id

    async def _begun(self, container: str, kind: str) -> ContainerOnNode:
        """Wait until a container is started whose namespace another one enters."""
        other = self._places.get(container)
        if other is not None and other.there:
            await other.begun.wait()
        if other is None or not other.there:
            raise EngineError(
                f"the container could not be created: container {container}, whose {kind} "
                "namespace it shares, has ended: start that first"
            )
        return other

    def share_processes(self, place: ContainerOnNode) -> bool:
        """Tell whether a container's PID namespace is that of another, too."""
        others = (other.joins.get("pid") for other in self._places.values())
        return "pid" in place.joins or place.id in others


_FOR_SRUN = ("SLURM", "SPANK_", "_SLURM_SPANK_", "PMI")


class JobShim:
    """The shim of a job, or those of the tasks of one container.

    Attributes:
        is_gathered: Whether each task has one of its own, which connects to us; so has a task
            whose lines are labelled.
        asked: What was asked for its step, by SCRUN_* variable.
        salloc: The state of the job, if scrun allocated it.
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
        """`found`: what another supervisor has left of the job, which has started its shim."""
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
        self._slowed = held.slowed
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
        srun = SrunStep(self._tools, self._child_env, self.journal, self._tasks, self._slowed)
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
