"""A container of crun or runc that another supervisor has made, which has died."""

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from scrun.core.errors import EngineError
from scrun.model.states import Phase
from scrun.supervisor.children.processes import output_of
from scrun.supervisor.children.strangers import stranger
from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.core.deposits import JOB, Deposit, Found
from scrun.supervisor.engines.local.commands import RuntimeCommands, RuntimeContainer
from scrun.supervisor.engines.local.exits import ForeignChild
from scrun.supervisor.engines.local.programs import end_left
from scrun.supervisor.engines.local.reaper import TERMINAL, ReaperChild
from scrun.supervisor.engines.local.runtime_job import RuntimeJob, RuntimeProcess, Tell
from scrun.supervisor.engines.local.session import ResumedLocalSession

_PATIENCE = 10.0


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
        found: Found,
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
            end_left(self._found.facts)
            self._request.deposit.note(programs=[])
            async with self._holding(first):
                process = ResumedRuntimeProcess(first, self)
                process.is_started = await self._is_started(first)
                if process.is_started:
                    self._begun.set()
                yield process

    async def resumed_session(
        self, found: Found, deposit: Deposit, running: Callable[[], None]
    ) -> ResumedLocalSession:
        """See `supervisor.contracts.adoption.AdoptedJob`."""
        return ResumedLocalSession(found, running)

    async def _first_process(self, stack: AsyncExitStack) -> ForeignChild:
        found, facts = self._found, self._found.facts
        pid, pidfd = facts["first"], found.take(f"{JOB}first")
        if "reaper" not in facts:
            return ForeignChild(pid, pidfd)
        reaper = await stack.enter_async_context(
            stranger(facts["reaper"], found.take(f"{JOB}reaper"), "reaper", grace=TERMINAL)
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
        if f"{JOB}start" in found.fds:
            pidfd = found.take(f"{JOB}start")
            async with stranger(found.facts["start"], pidfd, "start", grace=_PATIENCE) as start:
                if phase is Phase.STARTING:
                    await start.wait()
        if phase is not Phase.STARTING:
            return phase is not Phase.CREATED
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
