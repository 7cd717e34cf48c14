"""The containers that a job's shims hold, as far as others enter their namespaces."""

import os.path
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import trio

from scrun.core.errors import EngineError
from scrun.supervisor.engines.slurm.shim_step import ShimStep

_ASKED_FOR = ("namespaces", "uidMappings", "gidMappings")
"""What others ask for of a container's config.json (`supervisor.staging.policy`)."""


class ContainerOnNode:
    """What is known of a container on the node.

    Attributes:
        step: The shim's step.
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
        user may not look into.

        Args:
            place: The container; its config and joins are changed.

        Raises:
            EngineError: One of the others has ended.
        """
        for namespace in (place.config.get("linux") or {}).get("namespaces") or []:
            container = joins.get(os.path.dirname(namespace.get("path") or ""))
            if container is None:
                continue
            other = await self._begun(container, namespace["type"])
            del namespace["path"]
            place.joins[namespace["type"]] = other.id

    async def entered(self, joins: Mapping[str, str], where: str) -> str:
        """Return the shim's id of a container whose user namespace another one enters.

        Raises:
            EngineError: It has ended.
        """
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
