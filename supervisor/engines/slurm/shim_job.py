"""A Slurm job in which a shim makes the container, and holds it (`launch = "shim"`)."""

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any

import msgspec
import trio

from scrun.core.errors import EngineError, StateError, shortened
from scrun.model.states import Ending, killed
from scrun.supervisor.children.node_scripts import BY_MOUNTS, signal_script
from scrun.supervisor.contracts.engine import NodeAnswer, Program, Session, Step
from scrun.supervisor.contracts.first_process import Call
from scrun.supervisor.contracts.node import ImageFile, Mounting
from scrun.supervisor.core.nurseries import until, unwrapped
from scrun.supervisor.engines.failures import NotMade, create_and_run
from scrun.supervisor.engines.slurm.exits import exit_code, out_of_memory, without_files
from scrun.supervisor.engines.slurm.job import JobParts, SlurmJob
from scrun.supervisor.engines.slurm.job_ending import ended_meanwhile
from scrun.supervisor.engines.slurm.job_shim import JobShim
from scrun.supervisor.engines.slurm.neighbours import ContainerOnNode
from scrun.supervisor.engines.slurm.shim_config import check_pmi, container_config
from scrun.supervisor.engines.slurm.shim_session import LAST_OUTPUT, ShimSession, words_of
from scrun.supervisor.engines.slurm.shim_site import SiteContainer
from scrun.supervisor.engines.slurm.shim_step import ShimStep
from scrun.supervisor.engines.slurm.tools import of_a_container
from scrun.supervisor.engines.watched import WatchedProcess
from scrun.supervisor.nodes.connection import Shim, ShimError, ShimLost
from scrun.supervisor.nodes.creating import create
from scrun.supervisor.nodes.mounting import mount
from scrun.supervisor.nodes.restartable_streams import RestartableStreams
from scrun.supervisor.nodes.spreading import Receiver, Spreading
from scrun.supervisor.nodes.streams import ContainerStreams

_PATIENCE = 10.0


class ShimJob(SlurmJob):
    """A job whose container a shim makes (see `contracts.first_process.CreatesFirst`)."""

    launch = "shim"
    below_engine = False
    mount_points: Sequence[str] = ()

    def __init__(self, parts: JobParts, shims: JobShim) -> None:
        """Only scrun.toml's commands of the runtime are used; the layout has one task."""
        self.shims = shims
        self._shim_step = self._step_of(shims)
        super().__init__(parts, self._shim_step.step)
        self._place = ContainerOnNode(self._shim_step)
        self._until_made = ExitStack()
        self._killed = trio.Event()
        self._forgotten = False
        self._first: WatchedProcess | None = None
        self._streams: ContainerStreams | None = None
        self._site: SiteContainer | None = None
        self._images = ""
        self._sent: Spreading | None = None

    def _step_of(self, shims: JobShim) -> ShimStep:
        return shims.step()

    @contextmanager
    def entered(self) -> Iterator[None]:
        with self.shims.neighbours.holding(self._request.container, self._place), self._until_made:
            self._await_it()
            yield

    def _await_it(self) -> None:
        self._until_made.enter_context(self._shim_step.expecting(self._request.container))

    async def neighbours(self) -> Mapping[str, Mapping[str, Any]]:
        found = await self.shims.neighbours.configs(self._place, self._request.joins)
        return {} if self._shim_step.site is not None else found

    @property
    def sound(self) -> bool:
        """Whether its steps ended as they should, and the shim has cleaned up."""
        clean = self._shim_step.ended_well or (self.shims.is_kept and self._forgotten)
        return clean and super().sound

    @property
    def is_lacking(self) -> bool:
        """Whether its node lacks what a shim needs, and `srun --container` does not."""
        return self._shim_step.is_lacking

    async def ready(self) -> None:
        """Wait for the shim.

        Raises:
            EngineError: There is none.
        """
        await self._shim_step.shim()

    async def run(self, step: Step) -> Ending:
        """Create the container, start it, and wait for its end."""
        return await create_and_run(self, step)

    @asynccontextmanager
    async def created(
        self, step: Step, call: Call | None = None, console: str | None = None
    ) -> AsyncIterator[WatchedProcess]:
        """See `supervisor.contracts.first_process.CreatesFirst`.

        Raises:
            EngineError: There is no shim, or the runtime failed.
        """
        del call, console
        shim = await self._shim_step.shim()
        if self._shim_step.site is not None:
            check_pmi(self._options, f"the oci.conf on {self._node}")
        self._place.id = shim.name("container")
        journal = self._request.journal
        journal.write("info", f"job {self.id}: {self._shim_step.what}")
        async with unwrapped() as nursery:
            deposit = self._request.deposit
            ends = RestartableStreams(step.stdio, self._child_env, deposit)
            streams = shim.streams(step.stdio, step.terminal, self._child_env, journal, ends)
            async with streams:
                await self._create(shim, step, streams)
                hello = msgspec.to_builtins(self._shim_step.hello)
                self.shims.deposit.note(hello=hello)
                deposit.needs(self.shims.deposit)
                place = self._place
                deposit.note(
                    target=place.id, streams=streams.fields, neighbour=place.for_neighbours()
                )
                first = self._first = WatchedProcess(
                    lambda: self._begin(shim),
                    lambda first: self.how_it_ended(first, shim, streams),
                )
                self._streams = streams if step.terminal else None
                async with self._watched(first, shim, nursery):
                    yield first

    @asynccontextmanager
    async def _watched(
        self, first: WatchedProcess, shim: Shim, nursery: trio.Nursery
    ) -> AsyncIterator[None]:
        """Learn how the container ends; then delete it, and cancel the nursery."""
        self._place.is_made(first.begun)
        nursery.start_soon(first.watch)
        try:
            yield
        finally:
            self._place.is_over()
            with trio.move_on_after(_PATIENCE, shield=True):
                if self._is_frozen and self._first is not None and not self._first.over:
                    await self._step.kill()
                await self._delete(shim)
                await first.ended()
            nursery.cancel_scope.cancel()

    async def _create(self, shim: Shim, step: Step, streams: ContainerStreams) -> None:
        place = self._place
        place.config, more = await container_config(shim, step, self._node), {}
        if (site := self._shim_step.site) is not None:
            self._site = site.container(self.id, self._request.directory, step, place.config)
            place.config, more["site"] = self._site.changed(place.config), self._site.fields()
            self._request.deposit.note(site=self._site.facts())
        await self.shims.neighbours.joined(place, self._request.joins)
        try:
            await create(
                shim, place.config, id=place.id, name=self._request.container,
                streams=streams.fields, joins=place.joins, images=self._images,
                variables={**of_a_container(self.environment), **self.named(step)}, **more,
            )  # fmt: skip
        except ShimError as error:
            self._shim_step.doubt_runtime()
            with trio.move_on_after(_PATIENCE, shield=True):
                await self._delete(shim)
            raise NotMade(words_of(error), shown=False) from None
        self._until_made.close()
        self._images = ""  # they go with the container

    async def _delete(self, shim: Shim) -> None:
        try:
            reply = await shim.call("delete", id=self._place.id)
            self._forgotten = self._shim_step.is_of_use
            if words := reply.get("words"):
                self._request.journal.write("error", f"{self._node}: RunTimeDelete: {words}")
        except EngineError as error:
            self._request.journal.write("verbose", str(error))

    @property
    def _is_frozen(self) -> bool:
        """Whether its shim, which has no other container, answers only when Slurm resumes it."""
        return self._is_suspended and self.shims.neighbours.are_none(self._place)

    @property
    def _node(self) -> str:
        return self._shim_step.node

    async def _begin(self, shim: Shim) -> None:
        """Call the runtime's `start`.

        Raises:
            EngineError: The runtime failed.
        """
        try:
            await shim.call("start", id=self._place.id)
        except ShimError as error:
            text = f"the container could not be started: {words_of(error)}"
            raise EngineError(shortened(text)) from None

    async def how_it_ended(
        self, first: WatchedProcess, shim: Shim, streams: ContainerStreams
    ) -> Ending:
        """Wait for the container's end and for its output, and say how it ended."""
        try:
            status = await shim.ended(self._place.id)
            await self._finished(streams)
            self._request.deposit.note(status=status)
        except ShimLost:
            await self._shim_step.leave()
            if self._killed.is_set():
                return killed(signal.SIGKILL)
            return await ended_meanwhile(
                self._tools, self._child_env, self.id
            ) or self._shim_step.lost(self.shims.salloc)
        with trio.move_on_after(_PATIENCE):  # the runtime's `start` may hang
            await first.started()
        if self._site is not None and (ending := self._site.not_run(exit_code(status), streams)):
            return ending
        if self._place.id in shim.without_files and not self._killed.is_set():
            return without_files(self.id)
        if self._place.id in shim.short_of_memory and not self._killed.is_set():
            return out_of_memory(self.id)
        alone = self.shims.neighbours.are_none(self._place)
        if os.WIFSIGNALED(status) and alone and not self._killed.is_set():
            await self._shim_step.leave()  # then Slurm has said what it killed, and why
        aborted = self._step.state.aborted and not self._killed.is_set()
        if aborted and (ending := await ended_meanwhile(self._tools, self._child_env, self.id)):
            return ending
        return self._shim_step.ending(self.shims.salloc, status)

    async def _finished(self, streams: ContainerStreams) -> None:
        """Wait for the output's reader, as long as nobody kills the container."""
        async with until(self._killed.wait, LAST_OUTPUT):
            await streams.finished(LAST_OUTPUT)

    async def _alive(self) -> Shim:
        """Return the shim of a container that runs.

        Raises:
            StateError: It does not.
        """
        if self._first is None or not await self._first.runs():
            raise StateError(f"container {self._request.container} is not running")
        return await self._shim_step.shim()

    async def signal(self, number: int) -> None:
        """Send a signal to the container's first process; SIGKILL ends all of them.

        Raises:
            EngineError: The signal was not delivered.
        """
        await self._place.settled.wait()
        if (first := self._first) is None:
            raise EngineError("the container is not running")
        if number == signal.SIGKILL:
            await self._kill(first)
            return
        await first.begun.wait()
        if not first.over:
            shim = await self._shim_step.shim()
            if self._site is not None:
                await self._site.signal(shim, self._place.id, number, lambda: first.over)
            else:
                await shim.call("signal", id=self._place.id, number=number, all=False)

    async def _kill(self, first: WatchedProcess) -> None:
        """End all of its processes, whatever hangs: the runtime's `start`, or the shim."""
        if first.over or self._shim_step.is_over:
            return
        shim = await self._shim_step.shim()
        if not shim.lost.is_set():  # else it is lost, perhaps with output, and not killed
            self._killed.set()
        with trio.move_on_after(0 if self._is_frozen else _PATIENCE):
            try:
                await shim.call("signal", id=self._place.id, number=int(signal.SIGKILL), all=True)
            except ShimLost:
                await first.ended()  # its processes end with the shim
            return
        if not self.shims.neighbours.are_none(self._place):
            raise EngineError(f"{self._node}: the shim does not answer")
        self._request.journal.write("info", f"{self._node}: the shim does not answer")
        await self._step.kill()

    async def handles(self, number: int) -> bool:
        shim = await self._shim_step.shim()
        return await shim.handles(self._place.id, number)

    async def let_end(self) -> None:
        first = self._first
        if first is not None and await self.handles(signal.SIGTERM):
            await first.ended()

    async def session(self, program: Program) -> Session:
        """Prepare to run another program in the container.

        Raises:
            StateError: The container is not running.
        """
        shim = await self._alive()
        return ShimSession(shim, self._place.id, self._child_env, program, self._site)

    async def pause(self, *, resume: bool) -> None:
        """Pause or resume all processes of the container by signals.

        Raises:
            EngineError: The processes could not be signalled.
        """
        name = "CONT" if resume else "STOP"
        own = self._site.pause(resume=resume) if self._site is not None else ""
        for answer in await self.inspect(lambda state: own or signal_script(state, name)):
            if answer.status:
                raise EngineError(f"on {answer.node}: {answer.text.strip()}")

    async def inspect(self, script: Callable[[str], str]) -> list[NodeAnswer]:
        """Run a shell script on the container's node, by the shim.

        Raises:
            EngineError: The script could not be run.
        """
        shim = await self._alive()
        by_runtime = f'eval "$SCRUN_RUNTIME state {self._request.container}"'
        state = by_runtime if self._site is None else self._site.state
        text = script(state)
        if self.shims.neighbours.share_processes(self._place):
            text = BY_MOUNTS + text
        reply = await shim.call("script", script=text)
        return [NodeAnswer(self._node, reply["status"], reply["text"])]

    @property
    def separate_tasks(self) -> int:
        """One: a shim has one task."""
        return 1

    async def ask(self, script: Callable[[int], str]) -> list[str]:
        shim = await self._shim_step.shim()
        reply = await shim.call("script", script=script(0), images=self._images)
        return [str(reply["text"])]

    @property
    def mounted(self) -> set[Any]:
        return self.shims.mounted

    async def mount(self, mounting: Mounting) -> str:
        shim = await self._shim_step.shim()
        if self._shim_step.site is not None and not mounting.only_looks:
            raise EngineError("its containers are made by an oci.conf, which cannot mount images")
        if mounting.beside and mounting.maps is None:
            raise EngineError("it has one user, and shares the namespaces of another container")
        if mounting.beside:
            beside = await self.shims.neighbours.entered(self._request.joins, mounting.beside)
            mounting = msgspec.structs.replace(mounting, beside=beside)
        self._images = shim.name("images") if mounting.mounts else ""
        try:
            return await mount(shim, self._images, mounting, 0)
        except EngineError:
            self._images = ""
            raise

    async def send(
        self, images: Sequence[ImageFile], limit: int, say: Callable[[int, int], None]
    ) -> list[list[str]]:
        if self._sent is None:
            receiver = Receiver(self._node, await self._shim_step.shim())
            self._sent = Spreading([receiver])
        return await self._sent.send(images, limit, say)

    async def unmount(self) -> None:
        if name := self._images:
            self._images = ""
            with suppress(EngineError), trio.move_on_after(_PATIENCE):
                shim = await self._shim_step.shim()
                await shim.call("unmount", id=name)
        if self._sent is not None:
            await self._sent.leave()

    def resized(self) -> None:
        if self._streams is not None:
            self._streams.resized(self._place.id)
