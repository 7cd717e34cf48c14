"""A job and its shim that another supervisor has held, which has died.

All containers of the job are adopted with one call of the shim's, `resume`, which sends what
their streams lack. So each prepares its streams, and waits for the others.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec
import trio

from scrun.core.errors import EngineError
from scrun.model.states import Ending
from scrun.supervisor.children.pumps import received
from scrun.supervisor.contracts.adoption import AdoptedJob
from scrun.supervisor.contracts.engine import JobRequest, Session, Step
from scrun.supervisor.core.deposits import STEP, Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.engines.deferred_container import DeferredContainer, is_deferred
from scrun.supervisor.engines.slurm.job import JobParts, SrunJob
from scrun.supervisor.engines.slurm.job_shim import JobShim
from scrun.supervisor.engines.slurm.shim_job import ShimJob
from scrun.supervisor.engines.slurm.shim_session import ResumedShimSession
from scrun.supervisor.engines.slurm.shim_site import SiteConfs
from scrun.supervisor.engines.slurm.shim_step import ShimStep
from scrun.supervisor.engines.slurm.shim_task import ShimTask
from scrun.supervisor.engines.slurm.step import SrunStep
from scrun.supervisor.engines.watched import WatchedAgain
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.nodes.beginning import Direct
from scrun.supervisor.nodes.connection import Hello, Shim, ShimError, ShimLost
from scrun.supervisor.nodes.gathering import Rank
from scrun.supervisor.nodes.listening import NotReached
from scrun.supervisor.nodes.restartable_streams import ResumedStreams
from scrun.supervisor.nodes.resumed import ResumedShim, reconnected

_ATTEMPTS = 3
_PAUSE = 1.0
Another = Callable[[JobRequest, Inheritance], AdoptedJob]
PartsFor = Callable[[JobRequest, Inheritance], JobParts]
"""Returns the parts of a job whose step has the inherited layout and options."""


class AdoptedSrunJob(SrunJob):
    """A job in which srun launches a container, or has done so for another supervisor.

    Attributes:
        another: Returns the same job for another container.
    """

    another: Another

    def __init__(self, parts: JobParts, found: Inheritance) -> None:
        super().__init__(parts)
        self._found = found

    def resumed(self) -> AbstractAsyncContextManager[WatchedAgain]:
        found = self._found
        if found.job is not None:
            found.job.together.without(found.container)  # a shim of the job need not wait for it
        go_on = self._go_on if "srun" in found.facts else None
        return DeferredContainer(found, self._request.deposit, self.run, go_on).resumed()

    async def resumed_session(
        self, found: Inheritance, deposit: Deposit, running: Callable[[], None]
    ) -> Session:
        """Its srun has ended with the other.

        Raises:
            EngineError: Always.
        """
        raise EngineError("a program of exec that srun launches ends with the supervisor")

    async def _go_on(self, step: Step, *, task_status: trio.TaskStatus[bool]) -> Ending:
        streams = self._streams_of(step)
        status = await self._step.run_on(self._found, step.running, streams, task_status)
        return await self._how_step_ended(status)


class AdoptedShim(JobShim):
    """A job's shim that another supervisor has started."""

    def __init__(
        self,
        parts: JobParts,
        found: Inheritance,
        direct: Callable[[], Direct],
        confs: SiteConfs,
    ) -> None:
        self.found = found
        self.adopted: AdoptedStep | None = None
        super().__init__(parts, direct, found.facts["asked"], confs)

    def _new_step(self, srun: SrunStep) -> ShimStep:
        if self.adopted is not None:  # it has gone, and another one takes its place
            return super()._new_step(srun)
        parts = (srun, self.journal, self._direct, self._confs, self.deposit)
        self.adopted = AdoptedStep(*parts, self.found)
        return self.adopted


class AdoptedStep(ShimStep):
    """Its step."""

    def __init__(
        self,
        step: SrunStep,
        journal: Journal,
        direct: Callable[[], Direct],
        confs: SiteConfs,
        deposit: Deposit,
        found: Inheritance,
    ) -> None:
        super().__init__(step, journal, direct, confs, "", deposit)
        self._found = found
        self._there = trio.Event()
        self._resumed: list[Rank] = []
        self._targets: dict[str, str] = {}
        self._written: dict[int, int] = {}

    async def run(self, options: Sequence[str], variables: Mapping[str, str]) -> None:
        """Wait until the step ends, or somebody wants to leave it."""
        found, ended = self._found, trio.Event()
        to_srun, from_srun = found.take(f"{STEP}to_srun"), found.take(f"{STEP}from_srun")
        try:
            async with (
                received(found.take(f"{STEP}words"), self._take_words),
                unwrapped() as nursery,
            ):
                nursery.start_soon(self._connect, to_srun, from_srun, ended)
                try:
                    with self._scope:
                        self._status = await self.step.run_on(found)
                finally:
                    ended.set()
        finally:
            self._obeyed = self._leaving.is_set()
            self._over.set()
            self._there.set()
            self._known.set()

    def _connected(self, to_srun: int, from_srun: int) -> AbstractAsyncContextManager[ResumedShim]:
        return reconnected(to_srun, from_srun, self._journal)

    async def _get_ready(self, shim: Shim) -> None:
        """Connect to the shim, when its containers are ready.

        A shim that has gone has had containers, whose end is told as always.

        Raises:
            ShimLost: The shim cannot connect to us.
        """
        assert isinstance(shim, ResumedShim)
        self.hello = hello = msgspec.convert(self._found.facts["hello"], Hello)
        self._resumed = self._ranks = [Rank(shim, hello, 0)]
        self._there.set()
        await self._found.together.complete.wait()
        self.sites[0] = None
        if (site := self._found.facts.get("site")) is not None:
            self.sites[0] = self._confs.again(site, hello)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                direct = await self._direct()
                how = (direct.ports, direct.alone, direct.sealing)
                await shim.resume(hello, self._targets, self._written, *how)
                return
            except ShimLost:
                return
            except (ShimError, NotReached, OSError) as error:
                if attempt == _ATTEMPTS:
                    self._ranks = []
                    raise self._refused(f"it cannot be reached again: {error}") from None
                await trio.sleep(_PAUSE)

    async def old_rank(self) -> Rank:
        """Wait for the shim, a `ResumedShim`, which is not connected yet.

        Raises:
            EngineError: Its step has ended.
        """
        await self._there.wait()
        return (self._resumed or await self.ranks())[0]

    async def resumed(
        self, name: str, target: str, container: str, written: Mapping[int, int]
    ) -> bool:
        """Let the shim go on with a container or an exec whose streams are prepared.

        Args:
            written: How many bytes of each of its streams were written.

        Returns:
            Whether it was started.

        Raises:
            EngineError: The shim cannot connect to us.
        """
        self._targets[target] = container
        self._written.update(written)
        self._found.together.without(name)
        await self._known.wait()
        shim = self._shim or await self.shim()
        assert isinstance(shim, ResumedShim)
        return shim.lost.is_set() or shim.is_started(target)


class AdoptedShimJob(ShimJob):
    """A job in which another supervisor has made the container.

    Attributes:
        another: Returns the same job for another container.
    """

    another: Another

    def __init__(self, parts: JobParts, shims: AdoptedShim, found: Inheritance) -> None:
        super().__init__(parts, shims)
        self._found = found

    def _step_of(self, shims: JobShim) -> ShimStep:
        assert isinstance(shims, AdoptedShim)
        assert shims.adopted is not None
        return shims.adopted

    def _await_it(self) -> None:
        """Expect nothing: it is made."""

    @asynccontextmanager
    async def resumed(self) -> AsyncIterator[WatchedAgain]:
        """See `supervisor.contracts.engine.AdoptedJob`.

        Raises:
            EngineError: There is no shim.
        """
        request, facts = self._request, self._found.facts
        step = self._shim_step
        assert isinstance(step, AdoptedStep)
        rank, place = await step.old_rank(), self._place
        shim = rank.shim
        assert isinstance(shim, ResumedShim)
        place.id = facts["target"]
        place.recall(facts["neighbour"])
        ends = ResumedStreams(self._found.fds, request.deposit)
        fields = ends.fields(facts["streams"])
        async with unwrapped() as nursery:
            streams = shim.resumed_streams(fields, self._child_env, request.journal, ends)
            async with streams:
                task = ShimTask(rank, streams, request.container, is_kept=True, known=place.id)
                first = WatchedAgain(self._begin, lambda first: self._how_it_ended(first, None))
                first.is_started = await step.resumed(
                    request.container, place.id, place.id, ends.written_by(fields)
                )
                if first.is_started:
                    first.begun.set()
                if step.site is not None and "site" in facts:
                    task.site = step.site.again(facts["site"])
                self._first, self._tasks = first, [task]
                self.resized()  # it may have been while nobody told
                async with self._ended(nursery):
                    self._watch(first, nursery)
                    yield first

    async def resumed_session(
        self, found: Inheritance, deposit: Deposit, running: Callable[[], None]
    ) -> ResumedShimSession:
        """See `supervisor.contracts.engine.AdoptedJob`.

        Raises:
            EngineError: There is no shim.
        """
        step = self._shim_step
        assert isinstance(step, AdoptedStep)

        async def resumed(target: str, written: Mapping[int, int]) -> None:
            await step.resumed(found.container, target, self._found.facts["target"], written)

        journal, shim = self._request.journal, (await step.old_rank()).shim
        assert isinstance(shim, ResumedShim)
        return ResumedShimSession(shim, found, deposit, self._child_env, journal, resumed, running)


class Adopted:
    """The containers of a job that another supervisor has held, which has died."""

    def __init__(self, parts_for: PartsFor, shims: AdoptedShim | None) -> None:
        self._parts_for = parts_for
        self._shims = shims

    def job(self, request: JobRequest, found: Inheritance) -> "AdoptedShimJob | AdoptedSrunJob":
        """Return the job for one of the containers."""
        job: AdoptedShimJob | AdoptedSrunJob
        if is_deferred(found):
            job = AdoptedSrunJob(self._parts_for(request, found), found)
        else:
            assert self._shims is not None
            parts = self._parts_for(request, self._shims.found)
            job = AdoptedShimJob(parts, self._shims, found)
        job.another = self.job
        return job
