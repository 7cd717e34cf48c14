"""The life of a container: its nursery tree.

::

    container                   record, log, anchor; answers its `create`
    └── sessions                programs of `exec`, signals on their way
        └── stager              the script, loaded
            └── allocation      the job; left = released, or left to the other members of a pod
                └── staging     the staged bundle; left = staged out
                    └── step    waits for `start`, runs the container

`supervisor.containers.creation` answers `create`, `supervisor.containers.phases` has the way out.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import trio

from scrun.core.errors import EngineError, ScrunError, StagingError, StateError
from scrun.model.states import TAKEN, Ending, Phase, taken
from scrun.oci.config import Bundle
from scrun.oci.lookup import Found, Unknown
from scrun.settings.slurm.engine_flags import read_flags
from scrun.settings.slurm.request_sources import asked_by
from scrun.supervisor.containers.admission import ProgramNotFound, admit, called_as
from scrun.supervisor.containers.anchors import Anchor, forward_signals
from scrun.supervisor.containers.caller import Caller
from scrun.supervisor.containers.capture import CapturedOutput, capture
from scrun.supervisor.containers.creation import Creation
from scrun.supervisor.containers.ledger import Ledger
from scrun.supervisor.containers.phases import Phases
from scrun.supervisor.containers.pods import Pods
from scrun.supervisor.containers.show_files import show
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.contracts.engine import Engine, FirstProcess, Job, JobRequest, Makes, Step
from scrun.supervisor.contracts.running import RunningContainer
from scrun.supervisor.contracts.staged import Staged, View
from scrun.supervisor.contracts.stager import Stager, Submission
from scrun.supervisor.core.nurseries import Tasks, unwrapped
from scrun.supervisor.plugins.choose_stager import Stagers
from scrun.supervisor.scripts.spank.around import plugin_stack
from scrun.supervisor.scripts.spank.stack import Stack
from scrun.supervisor.staging.place import directory_for
from scrun.supervisor.staging.variables import script_variables

_LAST_OUTPUT = 5.0


class Lifecycle(Phases):
    """All that happens to a container from its `create` to the end of its job.

    Attributes:
        shown: Set when its files are where engines look for them, or will not be there.
        kept: Its output, if that goes through us.
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
    ) -> None:
        """Take all over; nothing runs yet.

        Args:
            create_request: What is asked for.
            engine: Where it will run.
            stagers: Who may stage it.
            ledger: Its record, made already; the journal is owned from now on.
            anchor: The anchor; owned from now on.
            stdio: The container's descriptors; owned from now on.
            pods: Whose jobs it may share.
            caller: Its `create`, as long as that waits.
        """
        super().__init__(create_request, ledger, anchor, stdio, caller)
        self.shown = trio.Event()
        self.shown.set()
        self.kept: CapturedOutput | None = None
        self._engine = engine
        self._stagers = stagers
        self._pods = pods
        self._creation = Creation(self, create_request, stdio, self._notices)
        self._skip_stage_out = trio.Event()
        self._may_run = trio.Event()
        self._begun = trio.Event()
        # a `run` that stays is told how it has ended
        self._not_started: ScrunError | None = None
        if not create_request.in_foreground:
            text = f"container {create_request.id} cannot be started: it was ended"
            self._not_started = StateError(text)
        self._obeying = trio.CancelScope()
        self._outputs = Tasks(f"container {create_request.id}: its output")
        self._beside = Tasks(f"container {create_request.id}")
        self._removing = trio.Lock()
        self._removed = False
        self._program: Found | Unknown = Unknown("")

    async def run(self) -> None:
        """Live: from the check of the bundle to the end of the job. Never raises."""
        try:
            async with self._outputs.open():
                await self._run()
                with trio.move_on_after(_LAST_OUTPUT, shield=True):
                    while self.kept is not None and not self.kept.output.ended:
                        await self.kept.output.more()
            await self._ledger.keep_what_is_left(job=self._job_may_be_left)
        except Exception as error:  # a fault of ours, and this container's matter alone
            self._fail(error)
        finally:
            self._journal.close()
            self.log.end()
            self.gone.set()
            self.settled.set()

    async def _run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._obey)
                nursery.start_soon(self._creation.answer_in_time)
                try:
                    with self._scope:
                        await self._live()
                except Exception as error:
                    self._fail(error)
                nursery.cancel_scope.cancel()
        except Exception as error:
            self._fail(error)
        try:
            await self._mark_out_of_memory()
            self._finish(self._ending or taken("scrun-failure", "it ended for no known reason"))
            with trio.CancelScope(shield=True):
                await self._anchor.close()
        except Exception as error:  # a fault of ours, and this container's matter alone
            self._fail(error)
        if not self.settled.is_set() and self.failure is None:
            text = self._ending.text if self._ending else ""
            self.failure = StateError(text or f"container {self.id} ended while it was created")

    async def _obey(self) -> None:
        with self._obeying:
            await forward_signals(self._anchor, self)

    async def _live(self) -> None:
        bundle = await self._read_bundle()
        create_request, settings, engine = (
            self._create_request,
            self._create_request.settings,
            self._engine,
        )
        stage = await self._stagers.choose(
            settings, create_request.child_env.environment, engine.name
        )
        config = bundle.config
        self._ledger.note(  # all at once: it is written to disk each time
            annotations={**config.annotations, **self._ledger.record.annotations},
            oci_version=config.oci_version,
            rootfs=bundle.rootfs,
            stager=stage.name,
        )
        async with (
            self._beside.open(),
            plugin_stack(
                settings, create_request.directory, bundle, engine, self._request(bundle)
            ) as stack,
            stage.ready(
                Submission(
                    bundle, settings, engine, stack.request, self._skip_stage_out, self._staged_out
                )
            ) as stager,
            self._allocated(stack.request, bundle) as job,
        ):
            self._job = job
            try:
                await self._stage_and_run(stager, bundle, job, stack)
            finally:
                # The engine that waits for the anchor need not wait for the job's end.
                if self._ending is not None and self.settled.is_set():
                    await self._mark_out_of_memory()
                    self._finish(self._ending)
                self._beside.end()

    @asynccontextmanager
    async def _allocated(self, request: JobRequest, bundle: Bundle) -> AsyncIterator[Job]:
        """Have a job, if there is an anchor: its making goes on while the bundle is looked at."""
        await self.named.wait()
        self._ledger.note(pid=self.pid)  # who asks for its state may wish to signal it
        async with self._pods.allocate(self._engine, request, bundle.config, self.pid) as job:
            yield job

    async def _read_bundle(self) -> Bundle:
        """Check what can be known before a job is asked for."""
        try:
            bundle, self._program = await admit(
                self._create_request, at_terminal=self._stdio.at_terminal
            )
        except ProgramNotFound as error:
            self._ending = Ending(error.status, "not-found", str(error))
            raise
        config = bundle.config
        if self._create_request.keeps_output and self._create_request.console is None:
            self.kept = capture(
                self._stdio,
                self._directory,
                self._create_request.settings.log.output_limit << 20,
                lambda text: self._journal.write("error", text),
                terminal=config.process.terminal,
            )
            if self.kept is not None:
                self._outputs.begin(self.kept.capture)
        elif self._create_request.in_foreground and config.process.terminal:
            self._stdio.become_terminal()
        return bundle

    def _staged_out(self) -> None:
        self._ledger.note(moved=None)

    def _request(self, bundle: Bundle) -> JobRequest:
        config = bundle.config
        by_flags = self._create_request.settings.slurm.engine_flags
        return JobRequest(
            container=self.id,
            child_env=self._create_request.child_env,
            directory=self._create_request.directory,
            record=self._directory,
            journal=self._journal,
            known=self._job_is_known,
            lost=self.end,
            ending=lambda: self._ending,
            asked=asked_by(config.annotations, config.process.env),
            flags=read_flags(config, resources=by_flags),
            waiting=self._job_waits,
            suspended=self._job_suspended,
            stays=self._job_stays,
        )

    async def _stage_and_run(self, stager: Stager, bundle: Bundle, job: Job, stack: Stack) -> None:
        nodes = job.environment.get("SLURM_JOB_NODELIST", "")
        staged = directory_for(self._create_request.settings.staging, stack.request)
        self._ledger.note(staged=staged, annotations={"org.scrun.nodes": nodes})
        self._notices.granted(nodes)
        try:
            await stack.allocated(job)
            variables = script_variables(
                self._create_request, self.pid, bundle, self._directory, job.environment
            )
            self._journal.live(f"job {job.id}: staging the bundle")
            async with stager.staged(job, variables) as place:
                self._running = RunningContainer(job, bundle, place, self._journal, self._beside)
                self._ledger.note(moved=place.moved)
                for note in place.notes:
                    self._journal.write("info", note)
                if place.missed:
                    self._stdio.say(f"without effect in a job: {', '.join(place.missed)}")
                step = Step(
                    bundle=place.bundle,
                    arguments=place.arguments,
                    stdio=self._stdio.fds,
                    terminal=bundle.config.process.terminal,
                    program=called_as(self._program, bundle.config.process, place.arguments[0]),
                    program_is_known=isinstance(self._program, Found),
                    running=self._runs,
                    submitted=bundle.path,
                )
                if isinstance(job, Makes) and self._may_be_made(stack):
                    ending = await self._make_and_run(job, step, place)
                else:
                    ending = await self._run_with_anchor(job, stack, step, place.view)
                self._ending = self._ending or ending
                self.become(Phase.STOPPING)
        except StagingError as error:
            if self._ending is None:
                raise
            # What the container wrote may not have come back: that is no success.
            self._journal.write("error", str(error))
            status = self._ending.status or TAKEN["scrun-failure"]
            self._ending = Ending(status, "scrun-failure", str(error))

    async def _show(self, view: View | None, shown: trio.Event) -> None:
        """Show its files to engines, which look for them when it runs."""
        try:
            await show(self.pid, view, self._journal, lambda: self._anchor.alive)
        finally:
            shown.set()

    def _may_be_made(self, stack: Stack) -> bool:
        """Tell whether the container can be made before `create` is answered.

        Then its errors are those of `create`. Scripts have something to do before it is made, and
        after the answer.
        """
        return self.phase is Phase.CREATING and not stack.has_scripts

    async def _make_and_run(self, job: Makes, step: Step, place: Staged) -> Ending:
        """Have the container made, and run it to its end.

        An engine's `create` makes it, and its monitor is its parent: that one sees the end at
        once. So there must be nothing that has to be done before it does, such as to bring back
        what the container has written.
        """
        self._creation.making = True
        engines = self._create_request.is_create and place.moved is None and not place.copied_from
        call, console = self._caller.call, self._create_request.console
        async with job.made(step, call, console) if engines else job.made(step) as process:
            self._made = process
            if engines:
                await self._take_the_anchors_place(process)
            else:
                self._begin_to_show(place.view)
            try:
                async with unwrapped() as nursery:
                    nursery.start_soon(self._end_unless_started, process)
                    await self._creation.be_created()
                    await self._begin(process)
                    ending = await process.ended()
                    nursery.cancel_scope.cancel()
            finally:
                self._begun.set()
        return ending

    async def _take_the_anchors_place(self, process: FirstProcess) -> None:
        self._process = process
        self._obeying.cancel()
        self._anchor.end(0)
        await self._anchor.close()
        self._stdio.keep_error_only()

    @property
    def about_to_run(self) -> bool:
        """Whether its program begins at this moment: no queue is waited in before."""
        return self._made is not None and self.phase is Phase.STARTING

    async def _begin(self, process: FirstProcess) -> None:
        try:
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

    async def _run_with_anchor(
        self, job: Job, stack: Stack, step: Step, view: View | None
    ) -> Ending:
        self._begin_to_show(view)
        if self.phase is Phase.CREATING:
            await self._creation.be_created()
        await self._may_run.wait()
        self.become(Phase.STARTING)
        return await stack.run(job, step)

    def _begin_to_show(self, view: View | None) -> None:
        self.shown = trio.Event()
        if not self._beside.begin(partial(self._show, view, self.shown)):
            self.shown.set()

    def resized(self) -> None:
        """Pass a new size of the terminal on."""
        if self._job is not None:
            self._job.resized()

    def skip_stage_out(self) -> None:
        """Do not wait for a script that stages out."""
        self._skip_stage_out.set()

    def begin(self, call: Callable[[], Awaitable[None]]) -> None:
        """Do something that ends with the container; nothing, if that is over."""
        self._beside.begin(call)
