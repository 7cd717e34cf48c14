"""What runs for one container: its nursery tree.

::

    container                   record, log, anchor; answers its `create`
    └── sessions                programs of `exec`, signals on their way
        └── stager              the script, loaded
            └── allocation      the job; on exit: released by the last member of its pod
                └── staging     the staged bundle; on exit: staged out
                    └── step    waits for `start`, runs the container

`supervisor.containers.creation` answers `create`, `phases` ends containers. A container that
another supervisor has left, which has died, has the same levels, opened from what that has left:

* One that was made. Its step has run all the time; its staging is undone when it is left, as after
  a dead supervisor.
* One that had yet to be made: its `create` has been answered, and its job is pending, or it was
  being staged. salloc has waited all the time. What was staged is undone and done again: nobody
  has seen it.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import trio

from scrun.core.errors import EngineError, ScrunError, StagingError, StateError
from scrun.core.typed import convert
from scrun.model.record import of_config
from scrun.model.states import Ending, Phase, taken
from scrun.model.waiting import waiting_of
from scrun.oci.config import Bundle
from scrun.oci.lookup import Found
from scrun.supervisor.children.terminal import give_a_size
from scrun.supervisor.containers.anchors import Anchor, forward_signals
from scrun.supervisor.containers.caller import Caller
from scrun.supervisor.containers.creation import Creation, ProgramNotFound, admit, called_as
from scrun.supervisor.containers.keeping import CAPTURED
from scrun.supervisor.containers.ledger import NODES, Ledger
from scrun.supervisor.containers.phases import Phases, RunningContainer
from scrun.supervisor.containers.pods import Pods
from scrun.supervisor.containers.shown_files import ShownFiles
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.contracts.engine import Engine, Job, Step
from scrun.supervisor.contracts.first_process import FirstProcess
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.contracts.stager import Leftover, Served, Stager, Submission
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.threads import in_thread, own_threads
from scrun.supervisor.engines.failures import NotMade, not_started
from scrun.supervisor.plugins.choose import Stagers
from scrun.supervisor.scripts.spank.around import plugin_stack
from scrun.supervisor.scripts.spank.stack import Stack
from scrun.supervisor.staging.owner import directory_for
from scrun.supervisor.staging.variables import script_variables

if TYPE_CHECKING:
    from scrun.supervisor.containers.takeover import Takeover

_LAST_OUTPUT = 5.0


class ContainerTree(Phases):
    """The tree of a container.

    Attributes:
        files: Its files, as engines see them.
        takeover: What another supervisor has left of it; None: it is new.
    """

    def __init__(
        self,
        create_request: CreateRequest,
        engine: Engine,
        stagers: Stagers,
        ledger: Ledger,
        anchor: Anchor,
        stdio: Stdio,
        pods: Pods,
        caller: Caller,
        takeover: "Takeover | None" = None,
    ) -> None:
        """Prepare; nothing runs yet.

        The ledger's journal, the anchor, stdio and takeover are owned from now on.
        """
        super().__init__(create_request, ledger, anchor, stdio, caller)
        self.takeover = takeover
        self._engine = engine
        self._stagers = stagers
        self._pods = pods
        self._creation = Creation(self, create_request, stdio, self._notices)
        self._skip_stage_out = trio.Event()
        self._may_run = trio.Event()
        self._begun = trio.Event()
        self._is_foreground = create_request.in_foreground
        text = f"container {create_request.id} cannot be started: it was ended"
        # a `run` in the foreground gets the ending instead
        self._not_started: ScrunError | None = None if self._is_foreground else StateError(text)
        self._signal_scope = trio.CancelScope()
        self.files = ShownFiles(
            self._beside, self.journal, create_request, lambda: self._anchor.alive
        )
        self._removing = trio.Lock()
        self._removed = False
        if takeover is None:
            self.there.set()
        else:
            self._go_on_from(takeover)

    @property
    def _left(self) -> Inheritance | None:
        """What another supervisor has left of it."""
        return None if self.takeover is None else self.takeover.found

    def _go_on_from(self, takeover: "Takeover") -> None:
        """Be where the other supervisor was."""
        found, record = takeover.found, self._ledger.record
        self._bundle = takeover.bundle
        self.phase = Phase[found.facts["phase"]]
        self.paused = record.status == "paused"
        self.queued.set()
        self.settled.set()
        if self.phase is Phase.RUNNING:
            self.runs.set()
            self.journal.rest()
        if found.is_made:
            return
        if self.phase is Phase.STARTING:  # nothing had been started
            self.phase = Phase.WAITING
        if started := self.phase is Phase.WAITING:
            self._creation.start_requested.set()
            self._may_run.set()
        if (program := found.facts["program"]) is not None:
            self._program = convert(program, Found)
        self._notices.queued(record.job_id)
        waiting = waiting_of(record.annotations)
        self._notices.go_on(waiting, started=started, granted=NODES in record.annotations)
        self.there.set()  # it takes signals, and can be started and deleted

    async def run(self) -> None:
        """Run everything from the check of the bundle to the end of the job.

        All of it sees the mounts of the caller. An exception becomes the container's failure. Only
        a cancellation gets out: then the supervisor itself ends.
        """
        mounts, takeover = self._caller.mounts, self.takeover
        try:
            if takeover is not None:
                own_threads()
                # if we died before that, the next one would begin with what we have begun with
                await self._deposit.be_safe()
            with mounts.seen():
                await self._live()
            if not self._ledger.record.is_left:
                mounts.close()
        finally:
            self.there.set()
            if takeover is not None:
                await takeover.end(self._deposit)

    async def _live(self) -> None:
        try:
            async with self._outputs.open():
                await self._run()
                with trio.move_on_after(_LAST_OUTPUT, shield=True):
                    while self.captured is not None and not self.captured.output.ended:
                        await self.captured.output.more()
            with trio.CancelScope(shield=True):
                await self.trail.ended()
            left, deleted = self._job_may_be_left, self.delete_requested
            await self._ledger.keep_what_is_left(job=left, deleted=deleted)
        except Exception as error:  # an internal error, which must not end other containers
            self._fail(error)
        finally:
            self.journal.close()
            self.log.end()
            self.gone.set()
            self.settled.set()

    async def _run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._forward_signals)
                nursery.start_soon(self._answer_create)
                try:
                    with self._scope:
                        await self._run_in_job()
                except Exception as error:
                    self._fail(error)
                nursery.cancel_scope.cancel()
        except Exception as error:
            self._fail(error)
        try:
            await self._mark_out_of_memory()
            unknown = taken("scrun-failure", "it ended for an unknown reason")
            await self._explain_and_finish(self._ending or unknown)
            with trio.CancelScope(shield=True):
                await self._anchor.close()
        except Exception as error:  # an internal error, which must not end other containers
            self._fail(error)
        if not self.settled.is_set() and self.failure is None:
            text = self._ending.text if self._ending else ""
            self.failure = StateError(text or f"container {self.id} ended before it was created")
            if self._ending and self._ending.reason == "killed" and self._is_foreground:
                self.failure.exit_code = self._ending.status

    async def _answer_create(self) -> None:
        if self.takeover is None or self.takeover.found.is_made:
            await self._creation.answer_in_time()
        elif self.phase is Phase.CREATED:
            await self._creation.wait_for_start()

    async def _forward_signals(self) -> None:
        """Signals may have arrived while nobody served the container; none gets lost."""
        await self.there.wait()
        with self._signal_scope:
            await forward_signals(self._anchor, self)

    async def _run_in_job(self) -> None:
        if self.takeover is not None and self.takeover.found.is_made:
            await self._run_on_in_job(self.takeover)
            return
        if self.takeover is not None:
            self.journal.write("info", "its supervisor has died, and this one goes on")
            await self._undo_staging()
        bundle = self._bundle = await self._read_bundle()
        asked, engine = self._create_request, self._engine
        settings = asked.settings
        scripts, env = self._scripts, asked.child_env.environment
        stage = await self._stagers.choose(settings, env, scripts.lua)
        config = bundle.config
        self._ledger.note(
            annotations={
                **of_config(config.annotations),
                **self._named,
                **self._ledger.record.annotations,
            },
            oci_version=config.oci_version,
            rootfs=bundle.rootfs,
            stager=stage.name,
            later=True,  # its pid follows
        )
        if engine.name != "local":
            if config.hooks.prestart:
                await self.anchor_known.wait()
            await self._network.find(bundle, self.pid, self._left)
        request = self._request(bundle)
        note = self._ledger.note
        async with (
            self._beside.open(),
            plugin_stack(asked, bundle, engine, request, scripts.plugstack) as stack,
            stage.ready(
                Submission(
                    *(bundle, settings, engine, stack.request, self._skip_stage_out),
                    staged_out=partial(note, moved=None),
                    removed=partial(note, staged="", later=True),
                )
            ) as stager,
            self._allocated(stack, bundle) as job,
        ):
            self._job = job
            try:
                await self._stage_and_run(stager, bundle, job, stack)
            finally:
                # An engine that waits for the anchor need not wait for the job to end.
                await self._report_end()
                self._beside.end()

    @asynccontextmanager
    async def _allocated(self, stack: Stack, bundle: Bundle) -> AsyncIterator[Job]:
        """Get a job once the anchor exists: `create` makes that while we check the bundle."""
        if self.takeover is None:
            settings = self._create_request.settings
            await self.trail.created(stack.request, bundle, settings)
        await self.anchor_known.wait()
        self._ledger.note(pid=self.pid)  # callers may signal it
        if stack.has_scripts:
            self._deposit.give_up("what its scripts of plugstack.conf know would be lost")
        async with self._pods.job(
            self._engine, stack.request, bundle.config, self.pid, self._left,
            self._create_request.settings,
        ) as job:  # fmt: skip
            if self._notices.pending:  # it has got its job while nobody looked
                self._job_waits(None)
            yield job

    async def _read_bundle(self) -> Bundle:
        """Check what can be checked before a job is requested: another supervisor has done so."""
        if self.takeover is not None:
            self._take_captured_over(self.takeover.found)
            self._scripts = await self._creation.scripts(self._engine.name)
            return self.takeover.bundle
        try:
            bundle, self._program, self._named, self._scripts = await admit(
                self._create_request, self._caller.pid, self._engine.name,
                at_terminal=await self._stdio.at_terminal(),
            )  # fmt: skip
        except ProgramNotFound as error:
            self._ending = Ending(error.status, "not-found", str(error))
            raise
        config = bundle.config
        if self._create_request.keeps_output and self._create_request.console is None:
            captured = self._captured_output()
            if await captured.connect(self._stdio, terminal=config.process.terminal):
                self._capture(captured)
        elif self._create_request.in_foreground and config.process.terminal:
            self._stdio.mark_as_terminal()
        if (size := config.process.console_size) and self._stdio.terminal is not None:
            await in_thread(give_a_size, self._stdio.terminal, size)
        return bundle

    async def _stage_and_run(self, stager: Stager, bundle: Bundle, job: Job, stack: Stack) -> None:
        directory = directory_for(self._create_request.settings.staging, stack.request)
        self._notices.granted(self._ledger.job_granted(job, directory))
        try:
            await stack.allocated(job)
            variables = script_variables(
                self._create_request, self.pid, bundle, self.directory, job.environment
            )
            self.journal.live(f"job {job.id}: staging the bundle")
            async with (
                stager.staged(job, variables) as staged,
                self._network.answered(bundle, job, self.runs, self._left) as networks,
                self.files.over(bundle, staged, job),
            ):
                self._running = RunningContainer(job, bundle, staged, self.journal)
                self._ledger.staged(staged)
                for note in staged.notes:
                    self.journal.write("info", note)
                self._carry_sockets(job, staged)
                step = Step(
                    bundle=staged.bundle,
                    arguments=staged.arguments,
                    stdio=self._stdio.fds,
                    terminal=bundle.config.process.terminal,
                    program=called_as(self._program, bundle.config.process, staged.arguments[0]),
                    program_is_known=isinstance(self._program, Found),
                    running=self._runs,
                    submitted=bundle.path,
                    tasks=staged.tasks,
                    preserved=self._stdio.preserved,
                    networks=networks,
                    sockets=tuple(staged.sockets),
                )
                if self._can_create_first(job, stack):
                    ending = await self._create_and_run(job, step, staged)
                else:
                    ending = await self._run_with_anchor(job, stack, step, staged)
                self._ending = self._ending or ending
                self.become(Phase.STOPPING)
        except StagingError as error:
            self._has_lost_changes(error)

    async def _tell_missed(self) -> None:
        """Say what has no effect; at its start, as engines attach their user's terminal before."""
        assert self._running is not None
        job, staged = self._running.job, self._running.staged
        for name, meant in self._create_request.misspelled:
            self._stdio.say(f"{name} has no effect: is it {meant}?")
            await self._stdio.said()
        missed = list(staged.missed)
        if self._stdio.preserved and not job.hands_on:
            missed.append("--preserve-fds")
        if missed:
            await self.tell_missed(self._stdio, missed)

    async def tell_missed(self, stdio: Stdio, missed: Sequence[str]) -> None:
        """Say on standard error which options have no effect."""
        where = "" if self._engine.name == "local" else " in a job"
        stdio.say(f"no effect{where}: {', '.join(missed)}")
        await stdio.said()

    def _engine_creates(self, job: Job, staged: Staged) -> bool:
        """Tell whether an engine's `create` runs the runtime.

        Its monitor becomes the container's parent and sees the end at once. So that is done only
        if nothing must happen before, such as bringing back the container's changes.
        """
        unchanged = staged.moved is None and not staged.copied_from
        return job.below_engine and self._create_request.is_create and unchanged

    def _can_create_first(self, job: Job, stack: Stack) -> bool:
        """Tell whether the runtime can create the container before its start.

        If `create` waits, the runtime's errors are its errors. Scripts rule that out: they run
        after the answer and before the container is created.
        """
        in_time = self.phase is Phase.CREATING or not job.below_engine
        return job.creates_first and in_time and not stack.has_scripts

    async def _create_and_run(self, job: Job, step: Step, staged: Staged) -> Ending:
        try:
            return await self._create_first(job, step, staged)
        except NotMade as error:
            if not self.settled.is_set():
                raise
            return not_started(error.words, shown=error.shown)

    async def _create_first(self, job: Job, step: Step, staged: Staged) -> Ending:
        """Let the runtime create the container, and run it to its end."""
        self._creation.making = True
        engines = self._engine_creates(job, staged)
        call, console = self._caller.call, self._create_request.console
        if not engines:  # `start` waits for it: so beside what the runtime takes
            self.files.begin_to_show(self.pid, staged.view, job)
        async with job.created(step, call, console) if engines else job.created(step) as process:
            self._first_process = process
            if engines:
                await self._replace_anchor(process)
            await self._keep(staged)
            if self._create_request.template and not engines:
                from scrun.supervisor.containers.templates import leave

                assert self._bundle is not None
                await leave(self._create_request, self._bundle, staged, self._ledger)
            ending = await self._wait_and_run(process)
            if staged.final:  # the runtime forgets it meanwhile
                self._ending = self._ending or ending
                await self._report_end()
        return ending

    async def _wait_and_run(self, process: FirstProcess) -> Ending:
        try:
            async with unwrapped() as nursery:
                nursery.start_soon(self._end_unless_started, process)
                await self._creation.be_created()
                await self._begin(process)
                ending = await self._end_of(process)
                nursery.cancel_scope.cancel()
        finally:
            self._begun.set()
        return ending

    async def _end_of(self, process: FirstProcess) -> Ending:
        """Wait for the end of its first process, and keep that for a successor."""
        ending = await self.files.until(process.ended())
        self._deposit.note(ending=msgspec.to_builtins(ending))
        return ending

    async def _replace_anchor(self, process: FirstProcess) -> None:
        self.process = process
        self._signal_scope.cancel()
        self._anchor.end(0)
        await self._anchor.close()
        self._stdio.keep_error_only()

    async def _begin(self, process: FirstProcess) -> None:
        self.become(Phase.STARTING)  # else `start` came while its job was pending
        await self._tell_missed()
        assert self._job is not None
        try:
            await self._network.connect(self._job, self.pid)
            await process.start()
        except EngineError as error:
            self._not_started = error
            raise
        self._not_started = None
        self._runs()
        self._begun.set()

    async def _end_unless_started(self, process: FirstProcess) -> None:
        ending = await process.ended()
        if self.phase is Phase.CREATED:
            self.end(ending)

    async def _run_with_anchor(self, job: Job, stack: Stack, step: Step, staged: Staged) -> Ending:
        self.files.begin_to_show(self.pid, staged.view, job)
        if stack.has_scripts or not job.keep(step):
            self._deposit.give_up("it is created only when it runs")
        await self._keep(staged)
        if self.phase is Phase.CREATING:
            await self._creation.be_created()
        await self._may_run.wait()
        self.become(Phase.STARTING)
        await self._tell_missed()
        ending = await stack.run(job, step)
        self._deposit.note(ending=msgspec.to_builtins(ending))
        return ending

    def skip_stage_out(self) -> None:
        """Stop waiting for a script that stages out."""
        self._skip_stage_out.set()

    # What another supervisor has left

    async def _undo_staging(self, served: Served | None = None) -> None:
        """Undo what another supervisor has staged.

        Args:
            served: How the container was served meanwhile, if it was made.

        Raises:
            ScrunError: It cannot be undone.
        """
        ledger, request = self._ledger, self._create_request
        if served is None:
            if not (ledger.record.staged or ledger.record.moved):
                return
            self.journal.write("info", "its bundle is staged once more")
        await self._stagers.undo(
            Leftover(ledger.record, self.directory, request.settings, request.child_env, served)
        )
        ledger.note(moved=None, staged="", stager="")

    def _take_captured_over(self, found: Inheritance) -> None:
        """Go on to capture its output, if the other did.

        Raises:
            OSError: A file cannot be opened.
        """
        names = [name for name in found.fds if name.startswith(CAPTURED)]
        if names:
            captured = self._captured_output()
            left = {name.removeprefix(CAPTURED): found.take(name) for name in names}
            captured.take_over(left, terminal=found.facts["captured"])
            self._capture(captured)

    async def _run_on_in_job(self, takeover: "Takeover") -> None:
        found, config = takeover.found, takeover.bundle.config
        self._take_captured_over(found)
        if self._engine.name != "local":
            await self._network.find(takeover.bundle, self.pid, found)
        # its caller knows of the job: only who releases it is noted
        request = msgspec.structs.replace(
            self._request(takeover.bundle), on_job_id=self._ledger.job_is_known
        )
        staged = convert(found.facts["staged"], Staged)
        async with (
            self._beside.open(),
            self._pods.job(self._engine, request, config, self.pid, found) as job,
        ):
            self._job = job
            try:
                try:
                    await self._go_on(takeover, job, staged)
                finally:
                    served = Served(job, request, staged, self._skip_stage_out)
                    with trio.CancelScope(shield=True):
                        await self._undo_staging(served)
            except StagingError as error:
                self._has_lost_changes(error)
            finally:
                await self._report_end()
                self._beside.end()

    async def _go_on(self, takeover: "Takeover", job: Job, staged: Staged) -> None:
        found, bundle = takeover.found, takeover.bundle
        takeover.begin_programs(self.programs, self.journal, job)
        network = self._network.answered(bundle, job, self.runs, found)
        async with job.resumed() as process, network, self.files.over(bundle, staged, job):
            self.files.serve_again(self.pid, job)
            self._running = RunningContainer(job, bundle, staged, self.journal)
            self._first_process = process
            self._carry_sockets(job, staged)
            if not takeover.has_anchor:
                self.process = process
            self.there.set()
            if "killed" in found.facts:
                self.begin_to_kill()
            alone = "alone" in found.facts  # its `scrun run` had no supervisor before
            text = "somebody has asked for a supervisor" if alone else "its supervisor has died"
            self.journal.write("info", f"{text}, and this one goes on")
            try:
                ending = await self._run_on(process)
            finally:
                self._begun.set()
            self._ending = self._ending or ending
            if staged.final:  # the runtime forgets it meanwhile
                await self._report_end()
        self.become(Phase.STOPPING)

    async def _run_on(self, process: FirstProcess) -> Ending:
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
