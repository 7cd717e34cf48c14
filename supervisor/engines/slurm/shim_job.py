"""A Slurm job in which shims make the container, and hold it (`launch = "shim"`).

A container has one task, or several with a shim each. What srun does with several tasks is done
here: standard input is for all, output is mixed, the highest status counts.
"""

import math
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from scrun.core.errors import EngineError, StateError, shortened
from scrun.model.states import Ending, exited, killed
from scrun.model.usage import Usage, of_tasks
from scrun.supervisor.children.node_scripts import BY_MOUNTS, signal_script
from scrun.supervisor.children.processes import exit_code
from scrun.supervisor.contracts.engine import NodeAnswer, Program, Session, Step
from scrun.supervisor.contracts.first_process import Call
from scrun.supervisor.contracts.networks import EngineSide, Networks, Reach
from scrun.supervisor.contracts.staged import config_of_task
from scrun.supervisor.contracts.target import ImageFile, Mounting
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.nurseries import for_all, until, unwrapped
from scrun.supervisor.engines.failures import NotMade, create_and_run
from scrun.supervisor.engines.slurm.job import JobParts, SlurmJob
from scrun.supervisor.engines.slurm.job_ending import ended_meanwhile, is_ending
from scrun.supervisor.engines.slurm.job_shim import ContainerOnNode, JobShim
from scrun.supervisor.engines.slurm.job_state import out_of_memory, without_files
from scrun.supervisor.engines.slurm.launching import check_pmi
from scrun.supervisor.engines.slurm.shim_session import LAST_OUTPUT, begun, resumed, words_of
from scrun.supervisor.engines.slurm.shim_task import ShimTask, TaskImages, container_config
from scrun.supervisor.engines.slurm.tools import of_a_container
from scrun.supervisor.engines.watched import WatchedProcess
from scrun.supervisor.nodes.beginning import Rank
from scrun.supervisor.nodes.messages import ShimError, ShimLost
from scrun.supervisor.nodes.restartable_streams import NO_STDIO, RestartableStreams
from scrun.supervisor.nodes.streams import Ends
from scrun.supervisor.shim.network import host
from scrun.supervisor.wire.frames import NETWORKS

if TYPE_CHECKING:
    from scrun.supervisor.nodes.shared import SharedStreams

_PATIENCE = 10.0
_SENT = 1.0  # seconds until a signal is on its way


class ShimJob(SlurmJob):
    """A job whose container shims make."""

    launch = "shim"
    copies_files = True
    serves_files = True
    creates_first = True
    mounts_images = True

    def __init__(self, parts: JobParts, shims: JobShim, found: Inheritance | None = None) -> None:
        """`found`: what another supervisor has left, which has made the container."""
        self.shims = shims
        self._found = found
        self.shim_step = shims.step() if found is None else shims.old_step
        super().__init__(parts, self.shim_step.step)
        self._place = ContainerOnNode(self.shim_step)
        self.is_beside_us = found is not None and bool(found.facts.get("beside_us"))
        self._until_made = ExitStack()
        self._killed = trio.Event()
        self._forgotten = False
        self._first: WatchedProcess | None = None
        self._tasks: list[ShimTask] = []
        self._images = TaskImages(self.shim_step)
        self._is_connected = False

    @contextmanager
    def entered(self) -> Iterator[None]:
        with self.shims.neighbours.holding(self._request.container, self._place), self._until_made:
            if not (self.shims.is_gathered or self._found):  # those have but this one, or had it
                self._until_made.enter_context(self.shim_step.expecting(self._request.container))
            yield

    async def neighbours(self) -> Mapping[str, Mapping[str, Any]]:
        found = await self.shims.neighbours.configs(self._place, self._request.joins)
        return {} if self.shim_step.site is not None else found

    @property
    def sound(self) -> bool:
        """Whether its steps ended as they should, and the shims have cleaned up."""
        is_left = not self.shims.is_gathered  # to the job's other containers, if it is the job's
        clean = self.shim_step.ended_well or (is_left and self._forgotten)
        return clean and super().sound

    run = create_and_run

    @asynccontextmanager
    async def created(
        self, step: Step, call: Call | None = None, console: str | None = None
    ) -> AsyncIterator[WatchedProcess]:
        del call, console
        ranks = await self.shim_step.ranks()
        for rank in ranks:
            if self.shim_step.sites[rank.number] is not None:
                check_pmi(self._options, f"the oci.conf on {rank.node}")
        self._request.journal.write("info", f"job {self.id}: {self.shim_step.what}")
        async with (
            unwrapped() as nursery,
            self._connected(ranks, step) as shared,
            self._ended(nursery),
        ):
            await self._create(step)
            if not self.shims.is_gathered:
                self._keep(self._tasks[0])
            first = self._first = WatchedProcess(
                self._begin, lambda first: self._how_it_ended(first, shared)
            )
            self._watch(first, nursery)
            yield first

    @asynccontextmanager
    async def resumed(self) -> AsyncIterator[WatchedProcess]:
        assert self._found is not None
        request, facts, place = self._request, self._found.facts, self._place
        step = self.shim_step
        shim, rank = await step.old_shim()
        place.id = facts["target"]
        place.recall(facts["neighbour"])
        ends = RestartableStreams(NO_STDIO, self._child_env, request.deposit, self._found.fds)
        fields = ends.fields(facts["streams"])
        async with (
            unwrapped() as nursery,
            shim.streams(
                ends.stdio, "terminal" in fields, self._child_env, self._output_lost, ends, fields
            ) as streams,
        ):
            task = ShimTask(rank, streams, request.container, is_kept=True, known=place.id)
            first = WatchedProcess(self._begin, lambda first: self._how_it_ended(first, None))
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
    ) -> Session:
        assert self._found is not None
        step, container = self.shim_step, self._found.facts["target"]
        shim, _ = await step.old_shim()

        async def resume(target: str, written: Mapping[int, int]) -> None:
            await step.resumed(found.container, target, container, written)

        journal = self._request.journal
        return resumed(shim, found, deposit, self._child_env, journal, resume, running)

    @asynccontextmanager
    async def _connected(
        self, ranks: Sequence[Rank], step: Step
    ) -> "AsyncIterator[SharedStreams | None]":
        """Carry the streams of all tasks. A terminal is that of the first task alone.

        What tasks share is not counted, so no successor can go on with it.
        """
        child_env, request, shared = self._child_env, self._request, None
        async with AsyncExitStack() as stack:
            if self.shims.is_gathered and not step.terminal:
                from scrun.supervisor.nodes.shared import SharedStreams

                shared = SharedStreams(
                    step.stdio, len(ranks), child_env,
                    labels="--label" in self._options, lines="--unbuffered" not in self._options,
                )  # fmt: skip
                await stack.enter_async_context(shared.opened())
            for rank in ranks:
                streams = None
                if rank.number == 0 or not step.terminal:
                    ends: Ends | None = None if shared is None else shared.of(rank.number)
                    if not self.shims.is_gathered:
                        ends = RestartableStreams(step.stdio, child_env, request.deposit)
                    opened = rank.shim.streams(
                        step.stdio, step.terminal, child_env, self._output_lost, ends
                    )
                    streams = await stack.enter_async_context(opened)
                is_kept = not self.shims.is_gathered
                self._tasks.append(ShimTask(rank, streams, request.container, is_kept=is_kept))
            self._place.id = self._tasks[0].id
            yield shared

    async def _create(self, step: Step) -> None:
        """Let each runtime create its container; NotMade if one failed: others may be there."""
        place = self._place
        place.config = await container_config(self._tasks[0].rank, step, self._request.record)
        await self.shims.neighbours.joined(place, self._request.joins)
        variables = {**of_a_container(self.environment), **self.named(step)}
        part, processors = self._held.part, {}
        if part is not None:
            place.config, processors = part.fit(place.config), part.processors
            variables.update(part.variables)

        async def create(task: ShimTask) -> None:
            config, rank, images = place.config, task.rank, self._images.of(task.rank)
            if step.tasks:
                of_task = step.tasks[rank.number]
                config = config_of_task(config, step.bundle, of_task)
                task.last = of_task.last
            if (site := self.shim_step.sites[rank.number]) is not None:
                number = rank.number if self.shims.is_gathered else None
                directory = self._request.directory
                task.site = site.container(self.id, directory, step, config, number)
            network = self._network
            more = {"network": network, **_fields_of(step.networks)} if network else {}
            if step.sockets:
                more["sockets"] = list(step.sockets)
            try:
                reply = await task.create(
                    config, joins=place.joins, images=images, variables=variables,
                    **processors, **more,
                )  # fmt: skip
            except ShimError as error:
                self.shim_step.doubt_runtime()
                raise NotMade(f"{self._which(task)}{words_of(error)}", shown=False) from None
            self._images.go_with(rank)
            if network not in ("", "late"):
                self._has_network(task, reply)

        await for_all(self._tasks, create, cancels=True)
        self.shim_step.has_made(self._request.container)
        self._until_made.close()

    @property
    def _network(self) -> str:
        """What network it is to have on its node: several tasks have to find each other."""
        several = self._request.network and self.separate_tasks > 1
        return "node" if several else self._request.network

    def _has_network(self, task: ShimTask, reply: Mapping[str, Any]) -> None:
        """Note whose network a container has on its node."""
        if by := reply.get("network"):
            self._place.has_network()
            text = f"its own, by {by}"
            if why := reply.get("why"):
                text += f", and not those of its engine: {why}"
        else:
            why = reply.get("why", "its shim is of an older scrun")
            text = f"the node's, as {why}" if why else "the node's"
            if reply.get("host") == host():
                self.is_beside_us = True
                self._request.deposit.note(beside_us=True)
        self._request.journal.write("info", f"network on {task.rank.node}: {text}")

    def _which(self, task: ShimTask) -> str:
        """Return which task it is, if there are several, to begin a message with."""
        return f"{task.where}: " if len(self._tasks) > 1 else ""

    def _keep(self, task: ShimTask) -> None:
        """Keep what a successor needs for the container."""
        deposit, place = self._request.deposit, self._place
        self.shims.deposit.note(hello=msgspec.to_builtins(self.shim_step.hello))
        deposit.needs(self.shims.deposit)
        if task.site is not None:
            deposit.note(site=task.site.facts())
        assert task.streams is not None
        deposit.note(target=task.id, streams=task.streams.fields, neighbour=place.for_neighbours())

    def _output_lost(self, reason: str) -> None:
        self._request.journal.write("error", reason)
        self._request.on_output_lost(reason)

    def _watch(self, first: WatchedProcess, nursery: trio.Nursery) -> None:
        self._place.is_made(first.begun)
        nursery.start_soon(first.watch)

    @asynccontextmanager
    async def _ended(self, nursery: trio.Nursery) -> AsyncIterator[None]:
        """Delete the container when the block is left, and cancel the nursery."""
        try:
            yield
        finally:
            first = self._first
            self._place.is_over()
            with trio.move_on_after(_PATIENCE, shield=True):
                if self._is_frozen and not (first is not None and first.over):
                    await self._step.kill()
                await for_all(self._tasks, self._delete)
                if first is not None:
                    await first.ended()
            nursery.cancel_scope.cancel()

    async def _delete(self, task: ShimTask) -> None:
        journal = self._request.journal
        try:
            words = await task.delete()
            self._forgotten = self.shim_step.is_of_use
            if words:
                journal.write("error", f"{task.rank.node}: RunTimeDelete: {words}")
        except EngineError as error:
            journal.write("verbose", str(error))

    @property
    def _is_suspended(self) -> bool:
        return self._held.state is not None and self._held.state.suspended

    @property
    def _is_frozen(self) -> bool:
        """Whether its shims, which have no other container, answer only when the job resumes."""
        return self._is_suspended and self.shims.neighbours.are_none(self._place)

    async def _begin(self) -> None:
        """Start the programs of all tasks; raises EngineError if a runtime failed."""
        try:
            await for_all(self._tasks, ShimTask.start)
        except ShimError as error:
            text = f"the container could not be started: {words_of(error)}"
            raise EngineError(shortened(text)) from None

    async def _how_it_ended(self, first: WatchedProcess, shared: "SharedStreams | None") -> Ending:
        """Wait for the ends of all tasks and for their output, and say how it ended."""
        step, salloc = self.shim_step, self.shims.salloc

        async def wait(task: ShimTask) -> None:
            await task.wait(self._killed)
            if task.is_without_files:  # the others may wait for it
                await self._signal_all(signal.SIGKILL)

        with suppress(ShimLost):
            await for_all(self._tasks, wait, cancels=True)
        lost = [task for task in self._tasks if task.is_lost]
        statuses = [task.status for task in self._tasks if task.status is not None]
        if lost:
            await step.leave()
            if self._killed.is_set():
                return killed(signal.SIGKILL)
            if ending := await ended_meanwhile(self._tools, self._child_env, self.id):
                return ending
            if self._step.state.aborted and any(statuses):  # KillOnBadExit of slurm.conf(5)
                return exited(128 + signal.SIGKILL)
            return step.lost(salloc, self._which(lost[0]))
        if shared is not None:
            async with until(self._killed.wait, LAST_OUTPUT):
                await shared.finished()
        highest = max(statuses, key=exit_code)
        self._request.deposit.note(status=highest)
        with trio.move_on_after(_PATIENCE):  # the runtime's `start` may hang
            await first.started()
        for task in self._tasks:
            if ending := task.not_run():
                return ending
            if task.is_without_files and not self._killed.is_set():
                one_of_several = len(self._tasks) > 1
                return without_files(f"{self.id}: {task.where}" if one_of_several else self.id)
        is_short = any(task.id in task.rank.shim.short_of_memory for task in self._tasks)
        if is_short and not self._killed.is_set():
            return out_of_memory(self.id)
        alone = self.shims.neighbours.are_none(self._place)
        if os.WIFSIGNALED(highest) and alone and not self._killed.is_set():
            await step.leave()  # then Slurm has said what it killed, and why
        if (
            not self._killed.is_set()
            and (self._step.state.aborted or await self._ends_unsaid())
            and (ending := await ended_meanwhile(self._tools, self._child_env, self.id))
        ):
            return ending
        return step.ending(salloc, highest)

    async def _ends_unsaid(self) -> bool:
        """Tell whether our job is being ended: a shim may tell before salloc does."""
        told = any(task.id in task.rank.shim.told_to_end for task in self._tasks)
        if not told or self.shims.salloc is None:
            return False
        return await is_ending(self._tools, self._child_env, self.id)

    @property
    def usage(self) -> Usage | None:
        return of_tasks(task.usage for task in self._tasks)

    async def _alive(self) -> list[ShimTask]:
        """Return the tasks that run; raises StateError if none does."""
        runs = self._first is not None and await self._first.runs()
        found = [task for task in self._tasks if task.status is None]
        if not (runs and found):
            raise StateError(f"container {self._request.container} is not running")
        return found

    async def signal(self, number: int) -> None:
        await self._place.settled.wait()
        if (first := self._first) is None:
            raise EngineError("the container is not running")
        if number == signal.SIGKILL:
            await self._kill(first)
            return
        await first.begun.wait()
        if not first.over:
            # what is suspended gets it when it resumes, like a process that is stopped
            with trio.move_on_after(_SENT if self._is_suspended else math.inf):
                await self._signal_all(number)

    async def _signal_all(self, number: int) -> None:
        left = [task for task in self._tasks if task.status is None]
        await for_all(left, lambda task: task.signal(number))

    async def _kill(self, first: WatchedProcess) -> None:
        """End all processes, whatever hangs: a runtime's `start`, or a shim."""
        if first.over or self.shim_step.is_over:
            return
        if not any(task.is_lost for task in self._tasks):
            self._killed.set()  # else it is lost, perhaps with output, and not killed
        with trio.move_on_after(0 if self._is_frozen else _PATIENCE):
            try:
                await self._signal_all(signal.SIGKILL)
            except ShimLost:
                await first.ended()  # its processes end with the shim
            return
        what = f"{self.shim_step.nodes}: the shim does not answer"
        if not self.shims.neighbours.are_none(self._place):
            raise EngineError(what)
        self._request.journal.write("info", what)
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
        task = (await self._alive())[0]
        task.is_kept = True
        return begun(task.rank.shim, task.id, self._child_env, program, task.site)

    @asynccontextmanager
    async def reaching(self, *, outside: bool = False) -> AsyncIterator[Reach]:
        """Reach the network of the first task."""
        from scrun.supervisor.nodes.connected import reaching  # few supervisors forward anything

        task = (await self._alive())[0]
        async with reaching(task.rank, task.id, outside=outside) as reach:
            yield reach

    async def connect_network(self, networks: Networks) -> None:
        task = self._tasks[0]
        is_late = self._request.network == "late" and not self._is_connected
        if not is_late and task.rank.hello.protocol < NETWORKS:
            return
        try:
            reply = await task.rank.shim.call("network", id=task.id, **_fields_of(networks))
        except ShimError as error:
            raise EngineError(f"its network: {words_of(error)}") from None
        if is_late:
            self._is_connected = True
            self._has_network(task, reply)
        elif (why := reply["why"]) and networks.addresses:
            raise EngineError(why)

    async def reach_out(self, engine: EngineSide) -> None:
        from scrun.supervisor.nodes.connected import serve

        task = (await self._alive())[0]
        await serve(task.rank, engine, container=task.id)

    async def shim_protocol(self) -> int:
        ranks = await self.shim_step.ranks()
        by_site = any(self.shim_step.sites[rank.number] is not None for rank in ranks)
        return 0 if by_site else min(rank.hello.protocol for rank in ranks)

    async def reach_sockets(self, engine: EngineSide) -> None:
        from scrun.supervisor.nodes.connected import serve

        async def of(task: ShimTask) -> None:
            await serve(task.rank, engine, container=task.id, sockets=True)

        await for_all(await self._alive(), of)

    async def pause(self, *, resume: bool) -> None:
        name = "CONT" if resume else "STOP"

        def script(task: ShimTask) -> str:
            own = task.site.pause(resume=resume) if task.site is not None else ""
            return own or signal_script(task.state, name)

        for answer in await self._ask_all(script):
            if answer.status:
                raise EngineError(f"on {answer.node}: {answer.text.strip()}")

    async def inspect(self, script: Callable[[str], str]) -> list[NodeAnswer]:
        return await self._ask_all(lambda task: script(task.state))

    async def _ask_all(self, script: Callable[[ShimTask], str]) -> list[NodeAnswer]:
        tasks = await self._alive()
        before = BY_MOUNTS if self.shims.neighbours.share_processes(self._place) else ""
        answers: dict[int, NodeAnswer] = {}

        async def ask(task: ShimTask) -> None:
            reply = await task.rank.shim.call("script", script=before + script(task))
            answer = NodeAnswer(task.rank.node, reply["status"], reply["text"])
            answers[task.rank.number] = answer

        await for_all(tasks, ask)
        return [answers[task.rank.number] for task in tasks]

    @property
    def separate_tasks(self) -> int:
        return self._layout.tasks

    async def ask(self, script: Callable[[int], str]) -> list[str]:
        return await self._images.ask(script)

    @property
    def mounted(self) -> set[Any]:
        return self.shims.mounted

    async def mount(self, mounting: Mounting) -> str:
        if mounting.beside and mounting.maps is None:
            raise EngineError("it has one user, and shares the namespaces of another container")
        if mounting.beside:
            beside = await self.shims.neighbours.entered(self._request.joins, mounting.beside)
            mounting = msgspec.structs.replace(mounting, beside=beside)
        mounting = msgspec.structs.replace(mounting, network=self._network in ("own", "late"))
        return await self._images.mount(mounting)

    async def send(
        self, images: Sequence[ImageFile], limit: int, say: Callable[[int, int], None]
    ) -> list[list[str]]:
        return await self._images.send(images, limit, say)

    async def unmount(self) -> None:
        await self._images.unmount()

    def resized(self) -> None:
        """Pass on a new size of the terminal, which is the first task's."""
        for task in self._tasks[:1]:
            if task.streams is not None:
                task.streams.resized(task.id)


def _fields_of(networks: Networks) -> dict[str, Any]:
    """Return the fields of calls about networks of a container's engine."""
    return {"networks": networks.addresses, "files": networks.files}
