"""Containers that another supervisor has left, which has died: finished ones and unfinished."""

import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import cast

import msgspec
import trio

from scrun.core.errors import StagingError
from scrun.model.identity import myself
from scrun.model.states import Ending, Phase, killed
from scrun.model.waiting import waiting_of
from scrun.oci import lookup
from scrun.oci.config import Bundle
from scrun.supervisor.containers.anchors import Anchor, NoAnchor
from scrun.supervisor.containers.caller import NoCaller
from scrun.supervisor.containers.container import Container
from scrun.supervisor.containers.keeping import CAPTURED, STREAMS
from scrun.supervisor.containers.ledger import NODES, Ledger
from scrun.supervisor.containers.live_session import InheritedSession, tell
from scrun.supervisor.containers.pods import Pods
from scrun.supervisor.containers.records import link
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.contracts.adoption import AdoptedJob, ResumedProcess
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.contracts.engine import Engine, Job, JobRequest
from scrun.supervisor.contracts.running import RunningContainer
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.contracts.stager import Leftover, Served
from scrun.supervisor.core.deposits import OWN, Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.mounts import MountNamespace
from scrun.supervisor.core.threads import own_threads
from scrun.supervisor.plugins.choose_stager import Stagers
from scrun.supervisor.scripts.spank.stack import Stack


class InheritedContainer(Container):
    """What both kinds have in common.

    Attributes:
        there: Set when it can be worked with, or has ended.
        joined: Set when others of its pod can join its job.
        deposits: Keep what it and its programs of `exec` need to outlive us.
    """

    def __init__(
        self,
        create_request: CreateRequest,
        bundle: Bundle,
        engine: Engine,
        stagers: Stagers,
        ledger: Ledger,
        pods: Pods,
        found: Inheritance,
        left: Sequence[tuple[Inheritance, Deposit]],
    ) -> None:
        """Go on where the other was; nothing runs yet.

        Args:
            found: What the other has left; its descriptors are owned from now on.
            left: What it has left for programs of `exec`, and what keeps that; likewise.
        """
        fds = [found.fds.pop(name, -1) for name in STREAMS]
        stdio = Stdio(fds, terminal=found.facts["terminal"])
        self._has_anchor = f"{OWN}anchor" in found.fds
        anchor = Anchor(found.take(f"{OWN}anchor")) if self._has_anchor else NoAnchor()
        mounts = MountNamespace(found.fds.pop(f"{OWN}mounts", -1))
        caller = NoCaller(ledger.record.pid, found.fds.pop(f"{OWN}pid_file", None), mounts)
        super().__init__(create_request, engine, stagers, ledger, anchor, stdio, pods, caller)
        self._submitted = self._bundle = bundle
        self._found = found
        self._left = [*left]
        self.there = self.joined = trio.Event()
        self.deposits = [self._deposit, *(deposit for _, deposit in left)]
        self.phase = Phase[found.facts["phase"]]
        self.paused = ledger.record.status == "paused"
        self.queued.set()
        self.settled.set()

    def _take_captured_over(self) -> None:
        """Go on to capture its output, if the other did.

        Raises:
            OSError: A file cannot be opened.
        """
        found = self._found
        names = [name for name in found.fds if name.startswith(CAPTURED)]
        if names:
            captured = self._captured_output()
            left = {name.removeprefix(CAPTURED): found.take(name) for name in names}
            captured.take_over(left, terminal=found.facts["captured"])
            self._capture(captured)

    def is_kept(self, name: str) -> None:
        """Note that it is ours: its deposit has begun. The others of its job wait for it."""
        with suppress(OSError):  # a full disk ends no container
            link(self._directory, name)  # first: who reads that we live connects to us
        self._ledger.note(supervisor=myself())
        os.close(self._found.take(f"{OWN}request"))
        if self._found.job is not None:
            self.joined = self._found.job.together.line_up(self.id)
            for name in self._names:
                self._found.job.together.awaits(name)

    @property
    def _names(self) -> list[str]:
        """What the shim of its job has to go on with: it, if it was made, and its programs."""
        return [self.id, *(found.container for found, _ in self._left)] * self._found.is_made

    async def run(self) -> None:
        own_threads()
        try:
            # if we died before that, the next one would begin with what we have begun with
            await self._deposit.be_safe()
            await super().run()
        finally:
            self.there.set()
            if (job := self._found.job) is not None:
                job.together.joins(self.id)
                for name in self._names:
                    job.together.without(name)
                if job.together.leaves(self.id) and self._deposit.job is not None and job.fds:
                    job.close()  # all were ended before they could take it over, so nobody will
                    self._deposit.job.end()
            for found, deposit in self._left:
                deposit.end()
                await tell(found, killed(signal.SIGKILL))
            self._found.close()


class UnfinishedContainer(InheritedContainer):
    """A container that the other supervisor had yet to make.

    Its `create` has been answered, and its job is pending, or it was being staged. salloc has
    waited all the time. What was staged is undone and done again: nobody has seen it.
    """

    def __init__(
        self,
        create_request: CreateRequest,
        bundle: Bundle,
        engine: Engine,
        stagers: Stagers,
        ledger: Ledger,
        pods: Pods,
        found: Inheritance,
        left: Sequence[tuple[Inheritance, Deposit]],
    ) -> None:
        super().__init__(create_request, bundle, engine, stagers, ledger, pods, found, left)
        if self.phase is Phase.STARTING:  # nothing had been started
            self.phase = Phase.WAITING
        started = self.phase is Phase.WAITING
        if started:
            self._creation.start_requested.set()
            self._may_run.set()
        if (program := found.facts["program"]) is not None:
            self._program = msgspec.convert(program, lookup.Found)
        record = ledger.record
        self._notices.queued(record.job_id)
        waiting = waiting_of(record.annotations)
        self._notices.go_on(waiting, started=started, granted=NODES in record.annotations)
        self.there.set()  # it takes signals, and can be started and deleted

    async def _answer_create(self) -> None:
        if self.phase is Phase.CREATED:
            await self._creation.wait_for_start()

    async def _read_bundle(self) -> Bundle:
        """The other supervisor has read and checked it."""
        self._take_captured_over()
        return self._submitted

    async def _run_in_job(self) -> None:
        self._journal.write("info", "its supervisor has died, and this one goes on")
        await self._undo_staging()
        await super()._run_in_job()

    async def _undo_staging(self) -> None:
        """Undo what was staged.

        Raises:
            ScrunError: It cannot be undone.
        """
        ledger, request = self._ledger, self._create_request
        if ledger.record.staged or ledger.record.moved:
            self._journal.write("info", "its bundle is staged once more")
            await self._stagers.undo(
                Leftover(ledger.record, self._directory, request.settings, request.child_env)
            )
            ledger.note(moved=None, staged="", stager="")

    @asynccontextmanager
    async def _allocated(self, stack: Stack, bundle: Bundle) -> AsyncIterator[Job]:
        parts = (self._engine, stack.request, bundle.config, self.pid, self._found)
        async with self._pods.job(*parts) as job:
            if self._notices.pending:  # it has got its job while nobody looked
                self._job_waits(None)
            yield job


class AdoptedContainer(InheritedContainer):
    """A container that the other supervisor has made.

    ::

        container                   record, log, anchor
        └── sessions                programs of `exec`
            └── allocation          the job, taken over
                └── staging         undone when it is left, as after a dead supervisor
                    └── step        the container, which has run all the time
    """

    async def _forward_signals(self) -> None:
        """Signals may have arrived while nobody served the container; none gets lost."""
        await self.there.wait()
        await super()._forward_signals()

    async def kill(self, number: int) -> None:
        await self.there.wait()
        await super().kill(number)

    async def start(self, *, again: bool = False) -> Callable[[], None]:
        await self.there.wait()
        return await super().start(again=again)

    async def _run_in_job(self) -> None:
        self._take_captured_over()
        own = self._request(self._submitted)
        job_request = msgspec.structs.replace(own, on_job_id=self._is_known)
        async with (
            self._beside.open(),
            self._pods.job(
                self._engine, job_request, self._submitted.config, self.pid, self._found
            ) as adopted,
        ):
            job = self._job = cast(AdoptedJob, adopted)
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
