"""A container on this machine that another supervisor has made, which has died."""

import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)

import msgspec
import trio

from scrun.core.errors import EngineError
from scrun.model.states import Ending, Phase, taken
from scrun.supervisor.children.foreign import foreign_process
from scrun.supervisor.children.persistent import inherited_child
from scrun.supervisor.children.processes import output_of
from scrun.supervisor.children.statuses import status_of
from scrun.supervisor.contracts.engine import JobRequest, Step
from scrun.supervisor.core.deposits import JOB, Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.engines.deferred_container import DeferredContainer
from scrun.supervisor.engines.local.commands import RuntimeCommands, RuntimeContainer
from scrun.supervisor.engines.local.exits import ForeignChild, ToldChild
from scrun.supervisor.engines.local.programs import end_left
from scrun.supervisor.engines.local.reaper import TERMINAL, ReaperChild
from scrun.supervisor.engines.local.runtime_job import RuntimeJob, RuntimeProcess, Tell
from scrun.supervisor.engines.local.session import ResumedLocalSession
from scrun.supervisor.engines.local.site_commands import OciConfCommands
from scrun.supervisor.engines.local.site_job import GRACE, LINE, RUNTIME, SiteJob, Starting
from scrun.supervisor.engines.watched import WatchedAgain

_PATIENCE = 10.0
_UNKNOWN = "nobody knows its exit status: its supervisor has died, and Linux is older than 6.15"


class ResumedRuntimeProcess(RuntimeProcess):
    """The first process of a container that another supervisor has made."""

    is_started = False


class AdoptedRuntimeJob(RuntimeJob):
    """A job whose container another supervisor has made."""

    def __init__(
        self,
        commands: RuntimeCommands,
        container: RuntimeContainer,
        request: JobRequest,
        tell: Tell,
        found: Inheritance,
    ) -> None:
        """See `LocalJob`.

        Args:
            commands: The commands of the runtime that has made it.
            container: The container.
            request: The request for the job.
            tell: See `LocalJob`.
            found: What the other supervisor has left.
        """
        super().__init__(commands, container, request, tell)
        self._found = found

    @asynccontextmanager
    async def resumed(self) -> AsyncIterator[ResumedRuntimeProcess]:
        """See `supervisor.contracts.adoption.AdoptedJob`."""
        async with AsyncExitStack() as stack:
            stack.callback(self._begun.set)
            first = await self._first_process(stack)
            if end_left(self._found.facts):
                self._request.deposit.note(programs=[])
            async with self._holding(first):
                process = ResumedRuntimeProcess(first, self)
                process.is_started = await self._is_started(first)
                if process.is_started:
                    self._begun.set()
                yield process

    async def resumed_session(
        self, found: Inheritance, deposit: Deposit, running: Callable[[], None]
    ) -> ResumedLocalSession:
        """See `supervisor.contracts.adoption.AdoptedJob`."""
        return ResumedLocalSession(found, running)

    async def _first_process(self, stack: AsyncExitStack) -> ForeignChild:
        found, facts = self._found, self._found.facts
        pid, pidfd = facts["first"], found.take(f"{JOB}first")
        if f"{JOB}told" in found.fds:
            told = found.take(f"{JOB}told")
            stack.callback(os.close, told)
            return ToldChild(pid, pidfd, told)
        if "reaper" not in facts:
            return ForeignChild(pid, pidfd)
        reaper = await stack.enter_async_context(
            foreign_process(facts["reaper"], found.take(f"{JOB}reaper"), "reaper", grace=TERMINAL)
        )
        self._runtime = reaper
        status = found.take(f"{JOB}status")
        stack.callback(os.close, status)
        return ReaperChild(pid, reaper, status, pidfd)

    async def begin(self) -> None:
        """See `RuntimeJob`; the other supervisor may have begun that at its last moment."""
        try:
            with trio.move_on_after(_PATIENCE):
                await super().begin()
                return
        except EngineError:
            if not await self._runs_already():
                raise
        if not await self._runs_already():
            raise EngineError(f"the container could not be started within {_PATIENCE:g} s")
        self._begun.set()

    async def _is_started(self, first: ForeignChild) -> bool:
        """Tell whether its program was started, or is being started still."""
        found, phase = self._found, Phase[self._found.facts["phase"]]
        if phase is not Phase.STARTING:
            return phase is not Phase.CREATED
        if f"{JOB}start" in found.fds:
            pidfd = found.take(f"{JOB}start")
            async with foreign_process(
                found.facts["start"], pidfd, "start", grace=_PATIENCE
            ) as start:
                await start.wait()
        return first.over or await self._runs_already()

    async def _runs_already(self) -> bool:
        """Ask the runtime whether the program runs, or has ended."""
        command = self._runtime_commands.state(self._container)
        answer = await output_of(["/bin/sh", "-c", command], self._child_env)
        try:
            status = str(json.loads(answer)["status"])
        except (ValueError, KeyError, TypeError):
            return True  # it does not know the container, which ends
        return status not in ("creating", "created")


class AdoptedSiteJob(SiteJob):
    """A job in which the commands of an oci.conf run a container, or are to."""

    def __init__(
        self,
        commands: OciConfCommands,
        container: RuntimeContainer,
        request: JobRequest,
        tell: Tell,
        found: Inheritance,
    ) -> None:
        """See `LocalJob`.

        Args:
            commands: The commands of the oci.conf.
            container: The container.
            request: The request for the job.
            tell: See `LocalJob`.
            found: What the other supervisor has left.
        """
        super().__init__(commands, container, request, tell)
        self._found = found
        self._starting: Starting | None = None

    def resumed(self) -> AbstractAsyncContextManager[WatchedAgain]:
        """See `supervisor.contracts.adoption.AdoptedJob`."""
        end_left(self._found.facts)
        self._request.deposit.note(programs=[])
        go_on = self._go_on if RUNTIME in self._found.facts else None
        start = None
        if LINE in self._found.fds:
            ours = socket.socket(fileno=self._found.take(LINE))
            self._starting = Starting(trio.socket.from_stdlib_socket(ours), self._log)
            start = self._starting.start
        deposit = self._request.deposit
        return DeferredContainer(self._found, deposit, self.run, go_on, start).resumed()

    async def resumed_session(
        self, found: Inheritance, deposit: Deposit, running: Callable[[], None]
    ) -> ResumedLocalSession:
        """See `supervisor.contracts.adoption.AdoptedJob`."""
        return ResumedLocalSession(found, running)

    async def _go_on(self, step: Step, *, task_status: trio.TaskStatus[bool]) -> Ending:
        facts = self._found.facts
        self._container = msgspec.structs.replace(
            self._container,
            bundle=facts["bundle"],
            rootfs=facts["rootfs"],
            arguments=tuple(step.arguments),
            foreground=facts[RUNTIME],
        )
        with nullcontext() if self._starting is None else self._starting.line:
            return await self._go_on_with(step, task_status)

    async def _go_on_with(self, step: Step, task_status: trio.TaskStatus[bool]) -> Ending:
        async with inherited_child(self._found, RUNTIME, grace=GRACE) as runtime:
            # what is created is started: again, for all that we know
            task_status.started(self._starting is None)
            await self._end_of(runtime, step.running)
            status = await status_of(runtime.pid, runtime.pidfd)
        if status is None:
            return taken("scrun-failure", _UNKNOWN)
        return await self._how_it_ended(os.waitstatus_to_exitcode(status))
