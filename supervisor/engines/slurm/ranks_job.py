"""A Slurm job with a container of several tasks, or with labels, that shims make.

Each task, which MPI calls a rank, is a container of its own with a shim of its own: so its
variables and descriptors are those that slurmstepd gives that task. What srun does with several
tasks is done here: standard input is for all, output is mixed, the highest status counts.
"""

import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import trio

from scrun.core.errors import EngineError, StateError, shortened
from scrun.model.states import Ending, exited, killed
from scrun.supervisor.children.node_scripts import signal_script
from scrun.supervisor.contracts.engine import NodeAnswer, Program, Session, Step
from scrun.supervisor.contracts.first_process import Call
from scrun.supervisor.contracts.node import ImageFile, Mounting
from scrun.supervisor.contracts.staged import config_of_task
from scrun.supervisor.core.nurseries import until, unwrapped
from scrun.supervisor.engines.failures import NotMade, create_and_run
from scrun.supervisor.engines.slurm.exits import exit_code, out_of_memory, without_files
from scrun.supervisor.engines.slurm.job import JobParts, SlurmJob, step_of
from scrun.supervisor.engines.slurm.job_ending import ended_meanwhile
from scrun.supervisor.engines.slurm.ranks_step import RanksStep, RankTask, for_all
from scrun.supervisor.engines.slurm.shim_config import check_pmi, container_config
from scrun.supervisor.engines.slurm.shim_session import LAST_OUTPUT, ShimSession, words_of
from scrun.supervisor.engines.slurm.shim_site import SiteConfs
from scrun.supervisor.engines.slurm.tools import of_the_job
from scrun.supervisor.engines.watched import WatchedProcess
from scrun.supervisor.nodes.beginning import Direct
from scrun.supervisor.nodes.gathering import Rank
from scrun.supervisor.nodes.messages import ShimError, ShimLost
from scrun.supervisor.nodes.mounting import mount as by_shim
from scrun.supervisor.nodes.shared import SharedStreams
from scrun.supervisor.nodes.spreading import Receiver, Spreading

_PATIENCE = 10.0


class RanksImages:
    """See `supervisor.contracts.node.Mounts`."""

    def __init__(self, step: RanksStep) -> None:
        self._step = step
        self._names: dict[int, str] = {}
        self._sent: Spreading | None = None

    def of(self, rank: Rank) -> str:
        """Return the shim's name of what it has mounted, or ""."""
        return self._names.get(rank.number, "")

    async def ask(self, script: Callable[[int], str]) -> list[str]:
        """Run a script for each task, where it sees what is mounted for that.

        Raises:
            EngineError: One could not be run.
        """
        answers: dict[int, str] = {}

        async def ask(rank: Rank) -> None:
            text = script(rank.number)
            reply = await rank.shim.call("script", script=text, images=self.of(rank))
            answers[rank.number] = str(reply["text"])

        ranks = await self._step.ranks()
        await for_all(ranks, ask)
        return [answers[rank.number] for rank in ranks]

    async def mount(self, mounting: Mounting) -> str:
        """Mount them on all nodes.

        Raises:
            EngineError: They cannot be mounted on one; then they are on none.
        """
        ranks = await self._step.ranks()
        by_site = any(self._step.sites[rank.number] is not None for rank in ranks)
        if by_site and not mounting.only_looks:
            raise EngineError("its containers are made by an oci.conf, which cannot mount images")
        ways: list[str] = []

        async def mount(rank: Rank) -> None:
            name = rank.shim.name("images") if mounting.mounts else ""
            self._names[rank.number] = name
            ways.append(await by_shim(rank.shim, name, mounting, rank.number))

        try:
            await for_all(ranks, mount)
        except EngineError:
            await self._unmount()
            raise
        return ways[0]

    async def send(
        self, images: Sequence[ImageFile], limit: int, say: Callable[[int, int], None]
    ) -> list[list[str]]:
        """Send images to all nodes.

        Raises:
            EngineError: One could not be sent to one of them.
        """
        if self._sent is None:
            ranks = await self._step.ranks()
            self._sent = Spreading([Receiver(rank.node, rank.shim) for rank in ranks])
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

        with suppress(EngineError), trio.move_on_after(_PATIENCE):
            await for_all(await self._step.ranks(), unmount)


class RanksJob(SlurmJob):
    """A job with one container of several tasks (see `contracts.first_process.CreatesFirst`)."""

    launch = "shim"
    below_engine = False
    mount_points: Sequence[str] = ()

    def __init__(self, parts: JobParts, direct: Callable[[], Direct], confs: SiteConfs) -> None:
        super().__init__(parts)
        journal, tasks = parts.request.journal, parts.layout.tasks
        self._ranks_step = RanksStep(self._step, journal, direct, confs, tasks)
        self._tasks: list[RankTask] = []
        self._settled = trio.Event()  # they are created, or never will be
        self._killed = trio.Event()
        self._first: WatchedProcess | None = None
        self._images = RanksImages(self._ranks_step)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["RanksJob"]:
        """Start the shims, and end them when the block is left, with all that they made."""
        words = [*step_of(self._held), *self._layout.arguments, "--overlap"]
        if self._layout.nodes != 1:
            words.append("--no-kill")
        words += [word for word in self._options if word not in ("--label", "--unbuffered")]
        variables = of_the_job(self.environment)
        variables |= self._request.plugin_variables
        async with unwrapped() as nursery:
            nursery.start_soon(self._ranks_step.run, words, variables)
            try:
                yield self
            finally:
                with trio.CancelScope(shield=True):
                    await self._ranks_step.leave()

    @property
    def sound(self) -> bool:
        """Whether its steps ended as they should, and the shims have cleaned up."""
        return self._ranks_step.ended_well and super().sound

    @property
    def is_unreached(self) -> bool:
        """Whether a node cannot connect to us."""
        return self._ranks_step.is_unreached

    @property
    def is_lacking(self) -> bool:
        """Whether a node lacks what shims need, and `srun --container` does not."""
        return self._ranks_step.is_lacking

    async def ready(self) -> None:
        """Wait for all shims.

        Raises:
            EngineError: One is missing.
        """
        await self._ranks_step.ranks()

    async def run(self, step: Step) -> Ending:
        """Create the container, start it, and wait for its end."""
        return await create_and_run(self, step)

    @asynccontextmanager
    async def created(
        self, step: Step, call: Call | None = None, console: str | None = None
    ) -> AsyncIterator[WatchedProcess]:
        """See `supervisor.contracts.first_process.CreatesFirst`.

        Raises:
            EngineError: A shim is missing, or a runtime failed.
        """
        del call, console
        ranks = await self._ranks_step.ranks()
        for rank in ranks:
            if self._ranks_step.sites[rank.number] is not None:
                check_pmi(self._options, f"the oci.conf on {rank.node}")
        self._request.journal.write("info", f"job {self.id}: {self._ranks_step.what}")
        config = await container_config(ranks[0].shim, step, ranks[0].node)
        async with unwrapped() as nursery, self._connected(ranks, step) as shared:
            try:
                await self._create_all(config, step)
                first = self._first = WatchedProcess(
                    self._begin, lambda first: self._how_it_ended(first, shared)
                )
                self._settled.set()
                nursery.start_soon(first.watch)
                yield first
            finally:
                self._settled.set()
                with trio.move_on_after(_PATIENCE, shield=True):
                    if self._is_suspended and self._first is not None and not self._first.over:
                        await self._step.kill()
                    await for_all(self._tasks, RankTask.delete)
                    if self._first is not None:
                        await self._first.ended()
                nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def _connected(self, ranks: list[Rank], step: Step) -> AsyncIterator[SharedStreams]:
        """Carry the streams of all tasks. A terminal is that of the first task alone."""
        shared = SharedStreams(
            step.stdio, len(ranks), self._child_env,
            labels="--label" in self._options, lines="--unbuffered" not in self._options,
        )  # fmt: skip
        async with AsyncExitStack() as stack:
            if not step.terminal:
                await stack.enter_async_context(shared.opened())
            for rank in ranks:
                streams = None
                if rank.number == 0 or not step.terminal:
                    ends = None if step.terminal else shared.of(rank.number)
                    streams = rank.shim.streams(
                        step.stdio, step.terminal, self._child_env, self._request.journal, ends
                    )
                    await stack.enter_async_context(streams)
                by_site = None
                if (site := self._ranks_step.sites[rank.number]) is not None:
                    by_site = partial(
                        site.container, self.id, self._request.directory, step, number=rank.number
                    )
                task = RankTask(rank, streams, self._request.container, by_site)
                task.images = self._images.of(rank)
                self._tasks.append(task)
            yield shared

    async def _create_all(self, config: dict[str, Any], step: Step) -> None:
        """Let each runtime create its container.

        Raises:
            NotMade: One failed; the others may be there.
        """
        failed: list[tuple[RankTask, ShimError]] = []
        async with unwrapped() as nursery:

            async def create(task: RankTask) -> None:
                own = config
                if step.tasks:
                    of_task = step.tasks[task.rank.number]
                    own = config_of_task(config, step.bundle, of_task)
                    task.last = of_task.last
                try:
                    await task.create(own, self.named(step))
                except ShimError as error:
                    failed.append((task, error))
                    nursery.cancel_scope.cancel()

            for task in self._tasks:
                nursery.start_soon(create, task)
        for task, error in failed:
            where = f"{task.where}: " * (len(self._tasks) > 1)
            raise NotMade(f"{where}{words_of(error)}", shown=False)

    async def _begin(self) -> None:
        """Start the programs of all tasks.

        Raises:
            EngineError: A runtime failed.
        """
        try:
            await for_all(self._tasks, RankTask.start)
        except ShimError as error:
            text = f"the container could not be started: {words_of(error)}"
            raise EngineError(shortened(text)) from None

    async def _how_it_ended(self, first: WatchedProcess, shared: SharedStreams) -> Ending:
        """Wait for the ends of all tasks and for their output, and say how it ended."""
        step, salloc = self._ranks_step, self._held.state
        lost: list[RankTask] = []
        async with unwrapped() as nursery:

            async def wait(task: RankTask) -> None:
                try:
                    await task.wait(self._killed)
                    if task.is_without_files:  # the others may wait for it
                        await self._signal_all(signal.SIGKILL)
                except ShimLost:
                    lost.append(task)
                    nursery.cancel_scope.cancel()

            for task in self._tasks:
                nursery.start_soon(wait, task)
        if not lost:
            async with until(self._killed.wait, LAST_OUTPUT):
                await shared.finished()
        statuses = [task.status for task in self._tasks if task.status is not None]
        if lost:
            await step.leave()
            if self._killed.is_set():
                return killed(signal.SIGKILL)
            if ending := await ended_meanwhile(self._tools, self._child_env, self.id):
                return ending
            if self._step.state.aborted and any(statuses):  # KillOnBadExit of slurm.conf(5)
                return exited(128 + signal.SIGKILL)
            return step.lost(salloc, f"{lost[0].where}: ")
        with trio.move_on_after(_PATIENCE):  # the runtime's `start` may hang
            await first.started()
        for task in self._tasks:
            if ending := task.not_run():
                return ending
            if task.is_without_files and not self._killed.is_set():
                return without_files(f"{self.id}: {task.where}")
        if any(task.is_short_of_memory for task in self._tasks) and not self._killed.is_set():
            return out_of_memory(self.id)
        highest = max(statuses, key=exit_code)
        if os.WIFSIGNALED(highest) and not self._killed.is_set():
            await step.leave()  # then Slurm has said what it killed, and why
        aborted = self._step.state.aborted and not self._killed.is_set()
        if aborted and (ending := await ended_meanwhile(self._tools, self._child_env, self.id)):
            return ending
        return step.ending(salloc, highest)

    async def _alive(self) -> list[RankTask]:
        """Return the tasks that run.

        Raises:
            StateError: None does.
        """
        runs = self._first is not None and await self._first.runs()
        found = [task for task in self._tasks if task.status is None]
        if not (runs and found):
            raise StateError(f"container {self._request.container} is not running")
        return found

    async def signal(self, number: int) -> None:
        """Send a signal to the first process of each task; SIGKILL ends all processes.

        Raises:
            EngineError: The signal was not delivered.
        """
        await self._settled.wait()
        if (first := self._first) is None:
            raise EngineError("the container is not running")
        if number == signal.SIGKILL:
            await self._kill(first)
            return
        await first.begun.wait()
        if not first.over:
            await self._signal_all(number)

    async def _signal_all(self, number: int) -> None:
        left = [task for task in self._tasks if task.status is None]
        await for_all(left, lambda task: task.signal(number))

    async def _kill(self, first: WatchedProcess) -> None:
        """End all processes, whatever hangs: a runtime's `start`, or a shim."""
        if first.over or self._ranks_step.is_over:
            return
        if not any(task.is_lost for task in self._tasks):
            self._killed.set()  # else it is lost, perhaps with output, and not killed
        with trio.move_on_after(0 if self._is_suspended else _PATIENCE):
            try:
                await self._signal_all(signal.SIGKILL)
            except ShimLost:
                await first.ended()  # its processes end with the shim
            return
        self._request.journal.write("info", f"job {self.id}: a shim does not answer")
        await self._step.kill()

    async def handles(self, number: int) -> bool:
        for task in [task for task in self._tasks if task.status is None]:
            if await task.rank.shim.handles(task.id, number):
                return True
        return False

    async def let_end(self) -> None:
        first = self._first
        if first is not None and await self.handles(signal.SIGTERM):
            await first.ended()

    async def session(self, program: Program) -> Session:
        """Prepare to run another program in the container, in its first task.

        Raises:
            StateError: The container is not running.
        """
        task = (await self._alive())[0]
        task.is_kept = True
        return ShimSession(task.rank.shim, task.id, self._child_env, program, task.site)

    async def pause(self, *, resume: bool) -> None:
        """Pause or resume all processes of the container by signals.

        Raises:
            EngineError: The processes could not be signalled.
        """
        name = "CONT" if resume else "STOP"

        def script(task: RankTask) -> str:
            own = task.site.pause(resume=resume) if task.site is not None else ""
            return own or signal_script(task.state, name)

        for answer in await self._ask_all(script):
            if answer.status:
                raise EngineError(f"on {answer.node}: {answer.text.strip()}")

    async def inspect(self, script: Callable[[str], str]) -> list[NodeAnswer]:
        """Run a shell script for each task of the container, on its node, by its shim.

        Raises:
            EngineError: The script could not be run.
        """
        return await self._ask_all(lambda task: script(task.state))

    async def _ask_all(self, script: Callable[[RankTask], str]) -> list[NodeAnswer]:
        tasks = await self._alive()
        answers: dict[int, NodeAnswer] = {}

        async def ask(task: RankTask) -> None:
            reply = await task.rank.shim.call("script", script=script(task))
            answer = NodeAnswer(task.rank.node, reply["status"], reply["text"])
            answers[task.rank.number] = answer

        await for_all(tasks, ask)
        return [answers[task.rank.number] for task in tasks]

    @property
    def separate_tasks(self) -> int:
        return self._layout.tasks

    async def ask(self, script: Callable[[int], str]) -> list[str]:
        return await self._images.ask(script)

    async def mount(self, mounting: Mounting) -> str:
        return await self._images.mount(mounting)

    async def send(
        self, images: Sequence[ImageFile], limit: int, say: Callable[[int, int], None]
    ) -> list[list[str]]:
        """Nodes pass them on to one another."""
        return await self._images.send(images, limit, say)

    async def unmount(self) -> None:
        await self._images.unmount()

    def resized(self) -> None:
        """Pass on a new size of the terminal, which is the first task's."""
        for task in self._tasks[:1]:
            if task.streams is not None:
                task.streams.resized(task.id)
