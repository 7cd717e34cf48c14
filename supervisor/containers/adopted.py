"""A container that another supervisor has made, which has died.

::

    container                   record, log, anchor
    └── sessions                programs of `exec`
        └── allocation          the job, taken over
            └── staging         undone when it is left, as after a dead supervisor
                └── step        the container, which has run all the time
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import trio

from scrun.core.errors import StagingError
from scrun.model.states import Ending, Phase
from scrun.supervisor.containers.inherited import InheritedContainer
from scrun.supervisor.containers.live_session import InheritedSession
from scrun.supervisor.contracts.adoption import AdoptedJob, Adopts, ResumedProcess
from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.contracts.running import RunningContainer
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.contracts.stager import Leftover, Served
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.core.inheritance import Inheritance


class AdoptedContainer(InheritedContainer):
    """See the module."""

    async def _forward_signals(self) -> None:
        """See `Lifecycle`; some may have come while there was nobody, and none gets lost."""
        await self.there.wait()
        await super()._forward_signals()

    async def kill(self, number: int) -> None:
        """See `Phases`."""
        await self.there.wait()
        await super().kill(number)

    async def start(self, *, again: bool = False) -> Callable[[], None]:
        """See `Container`."""
        await self.there.wait()
        return await super().start(again=again)

    async def _run_in_job(self) -> None:
        self._take_captured_over()
        assert isinstance(self._engine, Adopts)
        own = self._request(self._submitted)
        job_request = msgspec.structs.replace(own, on_job_id=self._is_known)
        async with (
            self._beside.open(),
            self._pods.adopted(self._engine, job_request, self._found, self.pid) as job,
        ):
            self._job = job
            try:
                async with self._staged(job, job_request) as staged:
                    await self._go_on(job, staged)
            except StagingError as error:
                self._has_lost_changes(error)
            finally:
                await self._report_end()
                self._beside.end()

    def _is_known(self, job_id: str, owned: bool) -> None:
        """Note only who releases the job: its caller knows of it."""
        self._ledger.job_is_known(job_id, owned)

    async def _go_on(self, job: AdoptedJob, staged: Staged) -> None:
        while self._left:
            self._go_on_with(*self._left.pop(), job)
        async with job.resumed() as process:
            self._running = RunningContainer(job, self._submitted, staged, self._journal)
            self._first_process = process
            if not self._has_anchor:
                self._process = process
            self.there.set()
            if "killed" in self._found.facts:
                self.begin_to_kill()
            alone = "alone" in self._found.facts  # its `scrun run` had no supervisor before
            text = "somebody has asked for a supervisor" if alone else "its supervisor has died"
            self._journal.write("info", f"{text}, and this one goes on")
            try:
                ending = await self._run_on(process)
            finally:
                self._begun.set()
            self._ending = self._ending or ending
            if staged.final:  # the runtime forgets it meanwhile
                await self._report_end()
        self.become(Phase.STOPPING)

    def _go_on_with(self, found: Inheritance, deposit: Deposit, job: AdoptedJob) -> None:
        """Go on with a program of `exec`."""
        session = InheritedSession(found, self._journal, deposit)
        self.programs.was_left(found.facts["pid"])

        async def run() -> None:
            try:
                await session.run_on(job)
            finally:
                if self._found.job is not None:
                    self._found.job.together.without(found.container)
                found.close()

        self.programs.begin(session, run)

    async def _run_on(self, process: ResumedProcess) -> Ending:
        if self.phase is Phase.CREATED:
            return await self._wait_and_run(process)
        if self.phase is Phase.WAITING:
            self.become(Phase.STARTING)
        if self.phase is Phase.STARTING:
            if process.is_started:
                self._runs()
            else:
                await self._begin(process)
        self._not_started = None
        self._begun.set()
        return await self._end_of(process)

    @asynccontextmanager
    async def _staged(self, job: AdoptedJob, job_request: JobRequest) -> AsyncIterator[Staged]:
        """Undo the staging at the end."""
        staged = msgspec.convert(self._found.facts["staged"], Staged)
        try:
            yield staged
        finally:
            request, ledger = self._create_request, self._ledger
            served = Served(job, job_request, staged, self._skip_stage_out)
            left = Leftover(
                ledger.record, self._directory, request.settings, request.child_env, served
            )
            with trio.CancelScope(shield=True):
                await self._stagers.undo(left)
            ledger.note(moved=None, staged="", stager="")
