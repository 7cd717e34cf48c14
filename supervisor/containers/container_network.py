"""The network of one container, where its engine makes one on this machine."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal

import trio

from scrun.oci.config import Bundle, Config, Mount
from scrun.supervisor.containers import conmon
from scrun.supervisor.containers.keeping import ENGINE_NETWORK
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.contracts.engine import Job
from scrun.supervisor.contracts.networks import Networks
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.log.journal import Journal

OF_DOCKER = "/moby/"  # the namespace of containerd's in which dockerd has its containers


class ContainerNetwork:
    """Its network; nothing, for most containers.

    It is a network namespace that config.json names, or the anchor's: docker puts its interfaces
    there, up to 27 by a hook, before the container is created. From 28 on it does so between
    `create` and `start`, as podman does where the container has users of its own.
    """

    def __init__(self, create_request: CreateRequest, journal: Journal, deposit: Deposit) -> None:
        self._create_request = create_request
        self._journal, self._deposit = journal, deposit
        self._mounts: Sequence[Mount] = ()
        self._path = ""
        self._comes_late = False
        self._open_late: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint
        self._networks = Networks()

    async def find(self, bundle: Bundle, anchor: int, found: Inheritance | None) -> None:
        """Learn where it is, or let docker make it now.

        Raises:
            EngineError: It could not be made.
        """
        config = bundle.config
        self._mounts = config.mounts
        if path := config.engine_network:
            from scrun.supervisor.containers.engine_network import is_of_this_machine

            # docker's host network has a path as well
            self._path = "" if await in_thread(is_of_this_machine, path) else path
        if self._path or not config.has_new_network:
            return
        hook = None
        if config.hooks.prestart:
            from scrun.supervisor.containers.docker_network import hook_of, made_network

            hook = hook_of(bundle)
        if found is not None:
            self._path = found.facts.get(ENGINE_NETWORK, "")
        elif hook is not None:
            container, child_env = self._create_request.id, self._create_request.child_env
            self._is_at(await made_network(container, bundle, hook, anchor, child_env))
        self._comes_late = hook is None and not self._path and self._may_come(config)

    def _may_come(self, config: Config) -> bool:
        """Tell whether its engine may put interfaces into the anchor's network before `start`."""
        by_docker = OF_DOCKER in self._create_request.bundle
        by_podman = conmon.calls(self._create_request.child_env.environment)
        is_made = by_docker or (by_podman and bool(config.linux.uid_mappings))
        return is_made and self._has_own

    @property
    def _has_own(self) -> bool:
        return self._create_request.settings.slurm.network == "auto"

    def _is_at(self, path: str) -> None:
        self._path = path
        self._deposit.note(**{ENGINE_NETWORK: path})

    @property
    def on_node(self) -> Literal["", "own", "late", "node"]:
        """What the container gets instead on its node; see `JobRequest.network`."""
        if self._comes_late:
            return "late"
        return ("own" if self._has_own else "node") if self._path else ""

    async def connect(self, job: Job, anchor: int) -> None:
        """Connect the container, which is about to start, if its network is there now.

        Or give it what its engine has written late into its files.
        """
        known = self._networks
        if self._comes_late:
            from scrun.supervisor.containers.docker_network import has_interface

            if not await in_thread(has_interface, anchor):
                return
            self._comes_late = False
            self._is_at(f"/proc/{anchor}/ns/net")
            await self._open_late()
        elif self._path:
            self._networks = Networks(known.addresses, await self._files())
        if self._networks != known:
            await job.connect_network(self._networks)

    async def _files(self) -> dict[str, str]:
        from scrun.supervisor.containers.engine_network import files_of, read_files

        return await in_thread(read_files, files_of(self._mounts, self._create_request.id))

    @asynccontextmanager
    async def answered(
        self, bundle: Bundle, job: Job, begun: trio.Event, found: Inheritance | None = None
    ) -> AsyncIterator[Networks]:
        """Answer connections in it while the block runs.

        Args:
            begun: Set when the container runs.
            found: What another supervisor has left of the container.

        Yields:
            What the container has of the engine's networks.
        """
        if self._comes_late:
            self._networks = Networks((), await self._files())
            async with unwrapped() as nursery:
                answering = partial(self._answer_late, bundle, job, begun)
                self._open_late = partial(nursery.start, answering)
                yield self._networks
                nursery.cancel_scope.cancel()
        elif self._path:
            async with self._opened(bundle, job, begun, found):
                yield self._networks
        else:
            yield Networks()

    async def _answer_late(
        self,
        bundle: Bundle,
        job: Job,
        begun: trio.Event,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async with self._opened(bundle, job, begun, None):
            task_status.started()
            await trio.sleep_forever()

    @asynccontextmanager
    async def _opened(
        self, bundle: Bundle, job: Job, begun: trio.Event, found: Inheritance | None
    ) -> AsyncIterator[None]:
        from scrun.supervisor.containers.engine_network import EngineNetwork  # few have one

        container = self._create_request.id
        network = EngineNetwork(self._path, container, bundle.config, self._journal, self._deposit)
        async with network.answered(job, begun, found):
            self._networks = network.networks
            yield
