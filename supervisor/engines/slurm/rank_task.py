"""A task of a container, with a shim of its own."""

import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import trio

from scrun.core.errors import EngineError
from scrun.model.states import Ending
from scrun.supervisor.core.nurseries import until, unwrapped
from scrun.supervisor.engines.slurm.exits import exit_code
from scrun.supervisor.engines.slurm.shim_session import LAST_OUTPUT
from scrun.supervisor.engines.slurm.shim_site import SiteContainer
from scrun.supervisor.nodes.creating import create
from scrun.supervisor.nodes.gathering import Rank
from scrun.supervisor.nodes.messages import ShimLost
from scrun.supervisor.nodes.streams import ContainerStreams

_LONGEST = 600.0
_T = TypeVar("_T")


class RankTask:
    """A task of the container.

    Attributes:
        rank: Its number and its shim.
        streams: Its streams; None if it has none.
        id: The shim's id of it.
        site: What an oci.conf has run for it, if there is one, and it is created.
        status: Its wait status, when it has ended and its output is written.
        is_kept: Whether its shim is needed after its end.
        last: A script for its node at its end; "": none.
        images: What its shim has mounted for it; "": nothing.
    """

    def __init__(
        self,
        rank: Rank,
        streams: ContainerStreams | None,
        name: str,
        by_site: Callable[[dict[str, Any]], SiteContainer] | None = None,
    ) -> None:
        """Describe one that is about to be made.

        Args:
            rank: See above.
            streams: See above.
            name: The container's id.
            by_site: Returns what an oci.conf has run for a config.json, if there is one.
        """
        self.site: SiteContainer | None = None
        self._by_site = by_site
        self.rank = rank
        self.streams = streams
        self.id = rank.shim.name("container")
        self.status: int | None = None
        self.is_kept = False
        self.last = self.images = ""
        self._name = name

    @property
    def where(self) -> str:
        """Which it is, for people."""
        return f"task {self.rank.number} on {self.rank.node}"

    @property
    def is_lost(self) -> bool:
        """Whether its shim has gone before it ended."""
        return self.status is None and self.rank.shim.lost.is_set()

    @property
    def is_short_of_memory(self) -> bool:
        """Whether it may have ended for want of memory."""
        return self.id in self.rank.shim.short_of_memory

    @property
    def is_without_files(self) -> bool:
        """Whether it has ended because its root file system went away."""
        return self.id in self.rank.shim.without_files

    async def create(self, config: dict[str, Any], variables: Mapping[str, str]) -> None:
        """Have it created; a terminal is for the first one.

        Args:
            config: Its config.json.
            variables: Variables that it has for itself.

        Raises:
            ShimError: The runtime failed.
        """
        fields = {} if self.streams is None else self.streams.fields
        if self.streams is None:
            config = {**config, "process": {**config["process"], "terminal": False}}
        more = {}
        if self._by_site is not None:
            self.site = self._by_site(config)
            config, more["site"] = self.site.changed(config), self.site.fields()
        await create(
            self.rank.shim, config, id=self.id, name=self._name, streams=fields, joins={},
            images=self.images, variables=variables, **more,
        )  # fmt: skip

    @property
    def state(self) -> str:
        """The command that prints its state, for a script of its shim."""
        by_runtime = f'eval "$SCRUN_RUNTIME state {self._name}"'
        return by_runtime if self.site is None else self.site.state

    def not_run(self) -> Ending | None:
        """Return how it ended, if an oci.conf's RunTimeRun did not find its program."""
        if self.site is None or self.streams is None or self.status is None:
            return None
        return self.site.not_run(exit_code(self.status), self.streams)

    async def start(self) -> None:
        """Start its program. One that has ended meanwhile has been started.

        Raises:
            ShimError: The runtime failed.
        """
        try:
            await self.rank.shim.call("start", id=self.id)
        except ShimLost:
            if self.status is None:
                raise

    async def signal(self, number: int) -> None:
        """Send a signal to its first process; SIGKILL to all.

        Raises:
            EngineError: It was not delivered.
        """
        shim, is_all = self.rank.shim, number == signal.SIGKILL
        try:
            if self.site is not None and not is_all:
                await self.site.signal(shim, self.id, number, lambda: self.status is not None)
                return
            await shim.call("signal", id=self.id, number=number, all=is_all)
        except ShimLost:
            if self.status is None:
                raise

    async def wait(self, killed: trio.Event) -> None:
        """Wait for its end and for its output; then its shim ends, and with it Slurm's task.

        Raises:
            ShimLost: The shim has gone before.
        """
        status = await self.rank.shim.ended(self.id)
        if self.streams is not None:
            async with until(killed.wait, LAST_OUTPUT):
                await self.streams.finished(LAST_OUTPUT)
        await self._say_last()
        self.status = status
        if not self.is_kept:
            self.rank.dismiss()

    async def delete(self) -> None:
        """End what is left of it; the rest is the end of the step."""
        if self.status is None:
            with contextlib.suppress(EngineError):
                await self.rank.shim.call("delete", id=self.id)
                await self._say_last()

    async def _say_last(self) -> None:
        """Run its last script, while there is a shim on its node."""
        script, self.last = self.last, ""
        if script:
            # whoever gave it looks at what it has done
            with contextlib.suppress(EngineError), trio.move_on_after(_LONGEST):
                await self.rank.shim.call("script", script=script)


async def for_all(tasks: Sequence[_T], do: Callable[[_T], Awaitable[object]]) -> None:
    """Do something for several tasks at once.

    Raises:
        EngineError: One failed; all others are done.
    """
    errors: list[EngineError] = []

    async def one(task: _T) -> None:
        try:
            await do(task)
        except EngineError as error:
            errors.append(error)

    async with unwrapped() as nursery:
        for task in tasks:
            nursery.start_soon(one, task)
    if errors:
        raise errors[0]
