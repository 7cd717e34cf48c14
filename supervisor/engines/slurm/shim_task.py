"""The tasks of a container that shims make, their config.json, and what is mounted for them."""

import os
import shlex
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from scrun.core.errors import EngineError, StagingError, described
from scrun.model.states import Ending
from scrun.model.usage import Usage
from scrun.oci.config import parse
from scrun.supervisor.children.processes import exit_code
from scrun.supervisor.contracts.engine import Step
from scrun.supervisor.contracts.target import ImageFile, Mounting
from scrun.supervisor.core.mounts import seen_mounts
from scrun.supervisor.core.nurseries import for_all, until
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.engines.local.runtime_config import with_absolute_paths, with_variables
from scrun.supervisor.engines.slurm.shim_session import LAST_OUTPUT
from scrun.supervisor.engines.slurm.shim_site import SiteContainer
from scrun.supervisor.engines.slurm.shim_step import ShimStep
from scrun.supervisor.nodes.beginning import Rank
from scrun.supervisor.nodes.connection import create
from scrun.supervisor.nodes.connection import mount as by_shim
from scrun.supervisor.nodes.messages import ShimLost
from scrun.supervisor.nodes.streams import ContainerStreams

if TYPE_CHECKING:
    from scrun.supervisor.nodes.spreading import Spreading

_PATIENCE = 10.0
_LONGEST = 600.0


class ShimTask:
    """A task of the container.

    Attributes:
        rank: Its number and its shim.
        streams: Its streams; None if it has none.
        id: The shim's id of it.
        site: What an oci.conf has run for it, if there is one, and it is created.
        status: Its wait status, when it has ended and its output is written.
        is_kept: Whether its shim is needed after its end.
        last: A script for its node at its end; "": none.
        usage: What it has used, when it has ended and that is known.
    """

    def __init__(
        self,
        rank: Rank,
        streams: ContainerStreams | None,
        name: str,
        *,
        is_kept: bool,
        known: str = "",
    ) -> None:
        """Describe it; `known`: the shim's id of the container of that name, if it is made."""
        self.rank = rank
        self.streams = streams
        self.id = known or rank.shim.name("container")
        self.site: SiteContainer | None = None
        self.status: int | None = None
        self.is_kept = is_kept
        self.last = ""
        self.usage: Usage | None = None
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
    def is_without_files(self) -> bool:
        """Whether it has ended because its root file system went away."""
        return self.id in self.rank.shim.without_files

    async def create(self, config: dict[str, Any], **fields: object) -> dict[str, Any]:
        """Create it, with more fields; return the reply. A terminal is for the first task."""
        streams = {} if self.streams is None else self.streams.fields
        if self.streams is None:
            config = {**config, "process": {**config["process"], "terminal": False}}
        if self.site is not None:
            config, fields["site"] = self.site.changed(config), self.site.fields()
        return await create(
            self.rank.shim, config, id=self.id, name=self._name, streams=streams, **fields
        )

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
        """Start its program, unless it has ended meanwhile; ShimError if the runtime failed."""
        if self.streams is not None:
            # its size may just have changed, and the program asks for it at once
            self.streams.resized(self.id)
        try:
            await self.rank.shim.call("start", id=self.id)
        except ShimLost:
            if self.status is None:
                raise

    async def signal(self, number: int) -> None:
        """Signal its first process, or all with SIGKILL; EngineError if not delivered."""
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
        """Wait for its end and for its output; then a shim of its own ends, and Slurm's task.

        Raises ShimLost if the shim has gone before.
        """
        status = await self.rank.shim.ended(self.id)
        self._take_usage()
        if self.streams is not None:
            async with until(killed.wait, LAST_OUTPUT):
                await self.streams.finished(LAST_OUTPUT)
        await self._say_last()
        self.status = status
        if not self.is_kept:
            self.rank.dismiss()

    async def delete(self) -> str:
        """End its processes, and let its shim forget it, unless that goes with it.

        Returns what RunTimeDelete said when it failed, or "". Raises EngineError if the shim could
        not do it.
        """
        if self.rank.is_dismissed:
            return ""
        reply = await self.rank.shim.call("delete", id=self.id)
        self._take_usage()
        await self._say_last()
        return str(reply.get("words", ""))

    def _take_usage(self) -> None:
        self.usage = self.rank.shim.usages.pop(self.id, self.usage)

    async def _say_last(self) -> None:
        """Run its last script, while there is a shim on its node."""
        script, self.last = self.last, ""
        if script:
            # whoever gave it looks at what it has done
            with suppress(EngineError), trio.move_on_after(_LONGEST):
                await self.rank.shim.call("script", script=script)


class TaskImages:
    """What shims have mounted for the tasks (see `supervisor.contracts.engine.Job.mount`)."""

    def __init__(self, step: ShimStep) -> None:
        self._step = step
        self._names: dict[int, str] = {}
        self._sent: Spreading | None = None

    def of(self, rank: Rank) -> str:
        """Return the shim's name of what is mounted for a task, or ""."""
        return self._names.get(rank.number, "")

    def go_with(self, rank: Rank) -> None:
        """Leave what is mounted for a task to its container, which is made."""
        self._names.pop(rank.number, None)

    async def ask(self, script: Callable[[int], str]) -> list[str]:
        answers: dict[int, str] = {}

        async def ask(rank: Rank) -> None:
            text = script(rank.number)
            reply = await rank.shim.call("script", script=text, images=self.of(rank))
            answers[rank.number] = str(reply["text"])

        ranks = await self._step.ranks()
        await for_all(ranks, ask)
        return [answers[rank.number] for rank in ranks]

    async def mount(self, mounting: Mounting) -> str:
        """Mount them on all nodes; EngineError if they cannot be on one: then they are on none."""
        ranks = await self._step.ranks()
        by_site = any(self._step.sites[rank.number] is not None for rank in ranks)
        if by_site and not mounting.only_looks:
            raise EngineError("its containers are made by an oci.conf, which cannot mount images")
        ways: list[str] = []

        async def mount(rank: Rank) -> None:
            name = rank.shim.name("images") if mounting.mounts else ""
            self._names[rank.number] = name
            try:
                ways.append(await by_shim(rank.shim, name, mounting, rank.number))
            except EngineError:
                del self._names[rank.number]
                raise

        try:
            await for_all(ranks, mount)
        except EngineError:
            await self._unmount()
            raise
        return ways[0]

    async def send(
        self, images: Sequence[ImageFile], limit: int, say: Callable[[int, int], None]
    ) -> list[list[str]]:
        """Send images to all nodes, which pass them on to one another; EngineError if not."""
        if self._sent is None:
            from scrun.supervisor.nodes.spreading import Spreading

            self._sent = Spreading(await self._step.ranks())
        return await self._sent.send(images, limit, say)

    async def unmount(self) -> None:
        """Undo both, as far as there are shims."""
        await self._unmount()
        if self._sent is not None:
            await self._sent.leave()

    async def _unmount(self) -> None:
        async def unmount(rank: Rank) -> None:
            if name := self._names.pop(rank.number, ""):
                await rank.shim.call("unmount", id=name)

        if any(self._names.values()):
            with suppress(EngineError), trio.move_on_after(_PATIENCE):
                await for_all(await self._step.ranks(), unmount)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


async def container_config(rank: Rank, step: Step, record: str) -> dict[str, Any]:
    """Return the config.json for the runtime, from that of the staged bundle.

    A site's script may have put that where only the nodes see it. Raises BundleError if it is
    invalid, and StagingError if it cannot be read.
    """
    path = os.path.join(step.bundle, "config.json")
    is_ours = seen_mounts().are_ours and os.path.dirname(step.bundle) == record
    try:  # what lies in a record needs no thread
        content = _read(path) if is_ours else await in_thread(_read, path)
    except FileNotFoundError:
        reply = await rank.shim.call("script", script=f"exec cat -- {shlex.quote(path)}")
        if reply["status"]:
            raise StagingError(f"{rank.node}: {reply['text'].strip()}") from None
        content = reply["text"].encode()
        parse(content, f"{rank.node}: {path}")  # whatever that node says
    except OSError as error:
        raise StagingError(f"{path}: {described(error)}") from error
    config: dict[str, Any] = with_absolute_paths(msgspec.json.decode(content), step.bundle)
    config["process"] = {
        **config["process"],
        "args": list(step.arguments),
        "env": with_variables(config["process"].get("env") or (), step.variables),
    }
    return config
