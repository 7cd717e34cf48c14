"""The step of a container of several tasks: each task is a shim."""

import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import trio

from scrun.core.errors import EngineError, SettingsError, leaves
from scrun.model.states import Ending
from scrun.supervisor.core.nurseries import until, unwrapped
from scrun.supervisor.engines.slurm.exits import exit_code
from scrun.supervisor.engines.slurm.shim_session import LAST_OUTPUT
from scrun.supervisor.engines.slurm.shim_site import NodeSite, SiteConfs, SiteContainer
from scrun.supervisor.engines.slurm.shim_step import ShimStep, means_of
from scrun.supervisor.engines.slurm.step import SrunStep
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.nodes.beginning import Direct
from scrun.supervisor.nodes.creating import create
from scrun.supervisor.nodes.gathering import Gathering, Rank, gathered
from scrun.supervisor.nodes.listening import NotReached
from scrun.supervisor.nodes.messages import ShimError, ShimLost
from scrun.supervisor.nodes.streams import ContainerStreams
from scrun.supervisor.shim.frames import UNREACHED

_LAST_DATA = 1.0
_WAY_OUT = 10.0
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
        """Create it; a terminal is for the first one.

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
        """Start its program. A task that has ended meanwhile counts as started.

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
        """End its processes; the step's end does the rest."""
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


class RanksStep(ShimStep):
    """A step with a shim in each task.

    Attributes:
        sites: The oci.conf that counts on the node of each task, by the task's number.
    """

    def __init__(
        self,
        step: SrunStep,
        journal: Journal,
        direct: Callable[[], Direct],
        confs: SiteConfs,
        tasks: int,
    ) -> None:
        super().__init__(step, journal, direct, confs)
        self.sites: dict[int, NodeSite | None] = {}
        self._tasks = tasks
        self._how = Direct(False, None)
        self._ranks: list[Rank] = []
        self._incomplete = trio.Event()

    async def ranks(self) -> list[Rank]:
        """Wait for all shims.

        Raises:
            EngineError: One could not be started, or srun has ended.
        """
        await self._known.wait()
        if not self._ranks or self.is_over:
            raise EngineError(f"the shims could not be started: {self.reason}")
        return self._ranks

    @property
    def is_unreached(self) -> bool:
        """Whether a node cannot connect to us, which one task could do without."""
        return any(UNREACHED in words for words in self._words)

    @property
    def _was_told(self) -> bool:
        return super()._was_told or all(rank.is_dismissed for rank in self._ranks)

    @property
    def what(self) -> str:
        """How the container is launched, for the log."""
        nodes = ", ".join(dict.fromkeys(rank.node for rank in self._ranks))
        means = ", ".join(
            dict.fromkeys(means_of(rank.hello, self.sites[rank.number]) for rank in self._ranks)
        )
        return f"launched by {self._tasks} shims on {nodes}, with {means}"

    def _look(self) -> None:
        """Notice a task that ends, or never begins, before all shims are there, too."""
        super()._look()
        state = self.step.state
        if not self._ranks and (state.missing < self._tasks or state.launch_failed):
            self._incomplete.set()

    async def _run_once(self, options: Sequence[str], variables: Mapping[str, str]) -> None:
        self._how = await self._direct()
        await super()._run_once(options, variables)

    async def _connect(self, to_srun: int, from_srun: int, srun_ended: trio.Event) -> None:
        self._incomplete = trio.Event()
        try:
            async with (
                until(self._leaving.wait),
                until(srun_ended.wait, _LAST_DATA),
                gathered(to_srun, from_srun, self._tasks, self._how, self._journal) as gathering,
            ):
                if not self._how.allowed:
                    raise NotReached("Slurm encrypts its connections, but not these")
                async with until(self._incomplete.wait):
                    await gathering.complete.wait()
                    await self._get_all_ready(gathering)
                    self._known.set()
                    await trio.sleep_forever()
                gathering.end()  # and go on to listen: who is late is not to say that nobody does
                await trio.sleep(_WAY_OUT)
        except* (NotReached, OSError) as group:  # of several, if a shim is lost meanwhile
            self._words.append(f"{UNREACHED}: {next(leaves(group))}")
        except* ShimLost as group:
            self._journal.write("verbose", str(next(leaves(group))))
        await self._lose(srun_ended)

    async def _get_all_ready(self, gathering: Gathering) -> None:
        for rank in gathering.ranks:
            rank.shim.place = self._place_in_step(rank.hello)
            try:
                self.sites[rank.number] = await self._site_on(rank.hello, rank.shim)
            except (SettingsError, ShimError) as error:
                raise self._refused(str(error)) from None
        self._ranks = gathering.ranks
        self.hello = self._ranks[0].hello
