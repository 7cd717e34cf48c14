"""The network of one container, where its engine has made one on this machine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import trio

from scrun.oci.config import Bundle
from scrun.supervisor.containers.keeping import ENGINE_NETWORK
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.contracts.engine import Job
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.log.journal import Journal


class ContainerNetwork:
    """Its network; nothing, for most containers."""

    def __init__(self, create_request: CreateRequest, journal: Journal, deposit: Deposit) -> None:
        self._create_request = create_request
        self._journal, self._deposit = journal, deposit
        self._path = ""

    async def find(self, bundle: Bundle, anchor: int, found: Inheritance | None) -> None:
        """Learn where it is, or let docker make it now.

        Args:
            anchor: The anchor's pid.
            found: What another supervisor has left of the container.

        Raises:
            EngineError: It could not be made.
        """
        self._path = bundle.config.engine_network
        if not bundle.config.hooks.prestart:
            return
        from scrun.supervisor.containers.docker_network import hook_of, made_network

        if (hook := hook_of(bundle)) is None:
            return
        if found is not None:
            self._path = found.facts.get(ENGINE_NETWORK, "")
            return
        container, child_env = self._create_request.id, self._create_request.child_env
        self._path = await made_network(container, bundle, hook, anchor, child_env)
        self._deposit.note(**{ENGINE_NETWORK: self._path})

    @property
    def on_node(self) -> Literal["", "own", "node"]:
        """What the container gets instead on its node; see `JobRequest.network`."""
        if not self._path:
            return ""
        return "own" if self._create_request.settings.slurm.network == "auto" else "node"

    @asynccontextmanager
    async def answered(
        self, bundle: Bundle, job: Job, begun: trio.Event, found: Inheritance | None = None
    ) -> AsyncIterator[tuple[str, ...]]:
        """Answer connections in it while the block runs.

        Args:
            begun: Set when the container runs.
            found: What another supervisor has left of the container.

        Yields:
            The engine's networks that the container is to reach.
        """
        if not self._path:
            yield ()
            return
        from scrun.supervisor.containers.engine_network import EngineNetwork  # few have one

        container = self._create_request.id
        network = EngineNetwork(self._path, container, bundle.config, self._journal, self._deposit)
        async with network.answered(job, begun, found):
            yield network.networks
