"""The life of a container: its nursery tree.

::

    container                   record, log, anchor; answers its `create`
    └── sessions                programs of `exec`, signals on their way
        └── stager              the script, loaded
            └── allocation      the job; left = released, or left to the other members of a pod
                └── staging     the staged bundle; left = staged out
                    └── step    waits for `start`, runs the container

`create` is answered when the bundle is staged, or when its caller has waited long enough: the
container is *created* then, may be started, and waits for the rest.

All ends are one: `end` cancels the tree and keeps the reason; the levels undo themselves in
order. The first reason counts.
"""

import math
import signal
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import trio

from scrun.anchor import LOST
from scrun.errors import (
    AllocationRefused,
    EngineError,
    ScrunError,
    StagingError,
    StateError,
    described,
    leaves,
)
from scrun.oci.config import Bundle
from scrun.oci.lookup import Found, Unknown
from scrun.oci.signals import signal_name, stop_signal
from scrun.record import ENDING_SINCE
from scrun.settings.engine_flags import read_flags
from scrun.settings.request_sources import asked_by
from scrun.states import (
    TAKEN,
    Answer,
    Ending,
    Phase,
    answer_to_signal,
    as_it_ended,
    killed,
    may_become,
    not_running,
    taken,
)
from scrun.waiting import Waiting, suspended_line
from supervisor import conmon
from supervisor.admission import ProgramNotFound, admit, called_as
from supervisor.anchors import Anchor, obey
from supervisor.caller import Caller
from supervisor.engines.base import Engine, Job, Makes, Process, Request, Step
from supervisor.inside import Inside
from supervisor.journal import Journal
from supervisor.kept import Followed, KeptOutput, keep
from supervisor.ledger import Ledger, now
from supervisor.log import fault
from supervisor.notices import Notices
from supervisor.nurseries import Tasks, unwrapped
from supervisor.orders import Order
from supervisor.pods import Pods
from supervisor.spank.around import plugin_stack
from supervisor.spank.stack import Stack
from supervisor.staging.base import Stager, Submission
from supervisor.staging.choose import Stagers
from supervisor.staging.place import Staged, directory_for
from supervisor.staging.variables import script_variables
from supervisor.stdio import Stdio
from supervisor.threads import in_thread
from supervisor.view.plan import View
from supervisor.view.show import show

_EXPLAINED = (*TAKEN, "not-found", "not-executable")
_LAST_OUTPUT = 5.0
_UNSTARTED = 20.0  # podman calls `start` in the moment in which `create` has ended
_MARK = 2.0
_UNANSWERED = 30.0  # less than the patience of any engine: podman's is 240 s, a kubelet's 120


class Life:
    """All that happens to a container from its `create` to the end of its job.

    Attributes:
        id: Its id.
        phase: Where it is in its life.
        settled: Set when it is created, or will never be: `create` can be answered.
        gone: Set when the whole tree is undone.
        failure: Why it was not created.
        doomed: Somebody has asked for its deletion.
        paused: Its processes are stopped for a while.
        suspended: They are so by somebody else, with all of the job.
        ended: Set when it has stopped, and `exit_status` is known.
        exit_status: Its exit status, then.
        shown: Set when its files are where engines look for them, or will not be there.
        kept: Its output, if that goes through us.
        log: What is said about it, to be followed.
    """

    def __init__(
        self,
        order: Order,
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
            order: What is asked for.
            engine: Where it will run.
            stagers: Who may stage it.
            ledger: Its record, made already; the journal is owned from now on.
            anchor: The anchor; owned from now on.
            stdio: The container's descriptors; owned from now on.
            pods: Whose jobs it may share.
            caller: Its `create`, as long as that waits.
        """
        self.id = order.id
        self.phase = Phase.CREATING
        self.settled = trio.Event()
        self.gone = trio.Event()
        self.failure: ScrunError | None = None
        self.doomed = False
        self.paused = False
        self.suspended = False
        self.ended = trio.Event()
        self.exit_status = 0
        self.shown = trio.Event()
        self.shown.set()
        self.kept: KeptOutput | None = None
        self._ledger = ledger
        self._directory = ledger.directory
        self._journal = ledger.journal
        self.log = Followed(self._journal.path, self._journal.own)
        self._journal.when_written(self.log.grew)
        self._order = order
        self._engine = engine
        self._stagers = stagers
        self._anchor = anchor
        self._stdio = stdio
        self._pods = pods
        self._caller = caller
        self._process: Process | None = None
        self._making = False
        self._notices = Notices(stdio.say)
        self._scope = trio.CancelScope()
        self._hurry = trio.Event()
        self._queued = trio.Event()
        self._asked_to_start = trio.Event()
        self._may_run = trio.Event()
        self._begun = trio.Event()
        self._not_started: ScrunError | None = StateError(
            f"container {order.id} cannot be started: it was ended"
        )
        self._obeying = trio.CancelScope()
        self._outputs = Tasks(f"container {order.id}: its output")
        self._beside = Tasks(f"container {order.id}")
        self._removing = trio.Lock()
        self._removed = False
        self._ending: Ending | None = None
        self._job_may_be_left = False
        self._job: Job | None = None
        self._running: Inside | None = None
        self._program: Found | Unknown = Unknown("")

    @property
    def alive(self) -> bool:
        """Whether anything of it is left to undo."""
        return not self.gone.is_set()

    @property
    def journal(self) -> Journal:
        """Where messages about it go."""
        return self._journal

    @property
    def directory(self) -> str:
        """Where its record is."""
        return self._directory

    @property
    def pid(self) -> int:
        """The pid that its engine knows: its first process', or its anchor's."""
        return self._anchor.pid if self._process is None else self._process.pid

    @property
    def process(self) -> Process | None:
        """Its first process, if that is the engine's own child."""
        return self._process

    @property
    def status(self) -> str:
        """Its state in one word; "paused" is crun's and runc's, and not the specification's."""
        if self.phase is Phase.STOPPING and not self.settled.is_set():
            return Phase.CREATING.status
        stands_still = (self.paused or self.suspended) and self.phase is Phase.RUNNING
        return "paused" if stands_still else self.phase.status

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
                nursery.start_soon(self._answer_create_in_time)
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
            await obey(self._anchor, self)

    async def _live(self) -> None:
        bundle = await self._read_bundle()
        order, settings, engine = self._order, self._order.settings, self._engine
        stage = await self._stagers.choose(settings, order.setting.environment, engine.name)
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
                settings, order.directory, bundle, engine, self._request(bundle)
            ) as stack,
            stage.ready(
                Submission(bundle, settings, engine, stack.request, self._hurry, self._staged_out)
            ) as stager,
            self._pods.allocate(engine, stack.request, bundle.config, self.pid) as job,
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

    async def _read_bundle(self) -> Bundle:
        """Check what can be known before a job is asked for."""
        try:
            bundle, self._program = await admit(self._order, at_terminal=self._stdio.at_terminal)
        except ProgramNotFound as error:
            self._ending = Ending(error.status, "not-found", str(error))
            raise
        config = bundle.config
        if self._order.keeps_output and self._order.console is None:
            self.kept = keep(
                self._stdio,
                self._directory,
                self._order.settings.log.output_limit << 20,
                lambda text: self._journal.write("error", text),
                terminal=config.process.terminal,
            )
            if self.kept is not None:
                self._outputs.begin(self.kept.keep)
        elif self._order.in_foreground and config.process.terminal:
            self._stdio.become_terminal()
        return bundle

    def _staged_out(self) -> None:
        self._ledger.note(moved=None)

    def _request(self, bundle: Bundle) -> Request:
        config = bundle.config
        by_flags = self._order.settings.slurm.engine_flags
        return Request(
            container=self.id,
            setting=self._order.setting,
            directory=self._order.directory,
            record=self._directory,
            journal=self._journal,
            known=self._job_is_known,
            lost=self.end,
            ending=lambda: self._ending,
            asked=asked_by(config.annotations, config.process.env),
            flags=read_flags(config, resources=by_flags),
            waiting=self._job_waits,
            suspended=self._job_suspended,
        )

    def _job_is_known(self, job_id: str, owned: bool) -> None:
        self._ledger.job_is_known(job_id, owned)
        self._notices.queued(job_id)
        self._queued.set()

    def _job_waits(self, news: Waiting | None) -> None:
        if self.ended.is_set():
            return  # what it waited for is over, though its job may still be in the queue
        self._ledger.job_waits(news)
        self._notices.waits(news)

    def _job_suspended(self, suspended: bool) -> None:
        self.suspended = suspended
        self._ledger.note(status=self.status)
        self._journal.write("info", suspended_line(self._ledger.record.job_id, suspended))

    async def _stage_and_run(self, stager: Stager, bundle: Bundle, job: Job, stack: Stack) -> None:
        nodes = job.environment.get("SLURM_JOB_NODELIST", "")
        staged = directory_for(self._order.settings.staging, stack.request)
        self._ledger.note(staged=staged, annotations={"org.scrun.nodes": nodes})
        self._notices.granted(nodes)
        try:
            await stack.allocated(job)
            variables = script_variables(self._order, bundle, self._directory, job.environment)
            self._journal.live(f"job {job.id}: staging the bundle")
            async with stager.staged(job, variables) as place:
                self._running = Inside(job, bundle, place, self._journal, self._beside)
                self._ledger.note(moved=place.moved)
                for note in place.notes:
                    self._journal.write("info", note)
                step = Step(
                    bundle=place.bundle,
                    arguments=place.arguments,
                    stdio=self._stdio.fds,
                    terminal=bundle.config.process.terminal,
                    program=called_as(self._program, bundle.config.process, place.arguments[0]),
                    program_is_known=isinstance(self._program, Found),
                    running=self._runs,
                )
                if isinstance(job, Makes) and self._may_be_made(stack, place):
                    ending = await self._make_and_run(job, step)
                else:
                    ending = await self._run_with_anchor(job, stack, step, place.view)
                self._ending = self._ending or ending
                self._become(Phase.STOPPING)
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
            await show(self._anchor.pid, view, self._journal, lambda: self._anchor.alive)
        finally:
            shown.set()

    def _may_be_made(self, stack: Stack, place: Staged) -> bool:
        """Tell whether its first process can be the engine's own child.

        The engine sees the end of that one at once. So there must be nothing that has to be done
        before it does, such as to bring back what the container has written.
        """
        brings_back = place.moved is not None or place.copied_from or stack.has_scripts
        return self._order.is_create and self.phase is Phase.CREATING and not brings_back

    async def _make_and_run(self, job: Makes, step: Step) -> Ending:
        """Have the container made by its `create`, and run it to its end."""
        self._making = True
        async with job.made(step, self._caller.call, self._order.console) as process:
            self._process = process
            self._ledger.note(pid=process.pid)
            self._obeying.cancel()
            self._anchor.end(0)
            await self._anchor.close()
            self._stdio.keep_error_only()
            try:
                async with unwrapped() as nursery:
                    nursery.start_soon(self._end_unless_started, process)
                    await self._be_created()
                    await self._begin(process)
                    ending = await process.ended()
                    nursery.cancel_scope.cancel()
            finally:
                self._begun.set()
        return ending

    async def _begin(self, process: Process) -> None:
        try:
            await process.start()
        except EngineError as error:
            self._not_started = error
            raise
        self._not_started = None
        self._runs()
        self._begun.set()

    async def _end_unless_started(self, process: Process) -> None:
        ending = await process.ended()
        if self.phase is Phase.CREATED:
            self.end(ending)

    async def _run_with_anchor(
        self, job: Job, stack: Stack, step: Step, view: View | None
    ) -> Ending:
        self.shown = trio.Event()
        if not self._beside.begin(partial(self._show, view, self.shown)):
            self.shown.set()
        if self.phase is Phase.CREATING:
            await self._be_created()
        await self._may_run.wait()
        self._become(Phase.STARTING)
        return await stack.run(job, step)

    async def _answer_create_in_time(self) -> None:
        """Answer `create` before its caller loses patience, whatever is still waited for.

        What Slurm refuses it refuses at once: that is `create`'s error. A `run` in the foreground
        has all the time in the world, and shows what it waits for.
        """
        if self._order.in_foreground:
            if self._order.shown.live and not self._stdio.error_is_terminal:
                self._notices.begin()
            return
        with trio.move_on_after(_UNANSWERED) as unanswered:
            await self._queued.wait()
        pending = self._notices.pending  # its pod's, for which another member has waited
        if not (pending or unanswered.cancelled_caught):
            with trio.move_on_after(self._order.settings.create_timeout):
                await self.settled.wait()
        if self.phase is Phase.CREATING and not self.ending and not self._making:
            podman = conmon.calls(self._order.setting.environment)
            await self._be_created(_UNSTARTED if podman else math.inf)

    async def _be_created(self, patience: float = math.inf) -> None:
        """Answer `create`, and wait for `start`; not for ever, if there is a patience.

        A podman that is interrupted while its conmon waits for `create` goes, and leaves the
        container behind as created. Without an end its job would come one day, and never go.
        `podman start` creates one anew that has ended.
        """
        died = partial(self._lost, "'s conmon died before its start")
        async with conmon.minded(self._order.setting.environment, self.pid, died):
            if self._become(Phase.CREATED):
                self.settled.set()
            with trio.move_on_after(patience):
                await self._asked_to_start.wait()
        if not self._asked_to_start.is_set():
            self._lost(f" has not started it for {patience:g} s")

    def _lost(self, why: str) -> None:
        """End: nobody is left who could start it."""
        text = f"container {self.id} was ended: podman{why}"
        self.end(killed(signal.SIGKILL, text))

    def resized(self) -> None:
        """Pass a new size of the terminal on."""
        if self._job is not None:
            self._job.resized()

    @property
    def ending(self) -> bool:
        """Whether somebody or something ends it."""
        return self._scope.cancel_called or self.phase is Phase.STOPPING

    def hurry(self) -> None:
        """Do not wait for a script that stages out."""
        self._hurry.set()

    def begin(self, call: Callable[[], Awaitable[None]]) -> None:
        """Do something that ends with the container; nothing, if that is over."""
        self._beside.begin(call)

    def end(self, ending: Ending) -> None:
        """Cancel the tree. The first reason is the one that counts."""
        if self._ending is None:
            self._ending = ending
            if ending.text:
                self._journal.write("info", ending.text)
        if self._running is None and self.phase in (Phase.CREATED, Phase.WAITING):
            self._finish(self._ending)  # it has nothing that could end later
        else:
            self._become(Phase.STOPPING)
        self._scope.cancel()

    async def kill(self, number: int) -> None:
        """Send a signal.

        Raises:
            StateError: There is nothing yet, or no more, that could get it.
            EngineError: It was not delivered.
        """
        stop = stop_signal(self._ledger.record.annotations)
        answer = answer_to_signal(self.phase, number, stop)
        if answer is Answer.TOO_LATE:
            raise StateError(not_running(self.id))
        if answer is Answer.DELIVER and number == 0:
            return  # kill(2): only whether there is something to signal
        if answer is Answer.DELIVER and self._job is not None:
            try:
                await self._job.signal(number)
            except EngineError:
                if self.phase is Phase.RUNNING:
                    raise
        elif answer is Answer.END:
            name = signal_name(number)
            self.end(killed(number, f"container {self.id} was killed by {name} before its start"))
            await self.ended.wait()
        elif answer is Answer.REFUSE:
            raise StateError(
                f"container {self.id} is still being created: there is no process for "
                f"{signal_name(number)}; TERM or KILL end it"
            )

    def _runs(self) -> None:
        self._become(Phase.RUNNING)

    def _become(self, phase: Phase, annotations: Mapping[str, str] | None = None) -> bool:
        """Go on to another phase, if it may follow; put it down with what is known with it.

        Returns:
            Whether it did.
        """
        if not may_become(self.phase, phase):
            return False
        self.phase = phase
        if phase is Phase.RUNNING:
            self._stdio.keep_error_only()
        if phase is Phase.STOPPING:
            annotations = {ENDING_SINCE: now()}
        self._ledger.note(status=self.status, annotations=annotations)
        self._journal.write("verbose", f"it is {phase.name.lower()}")
        return True

    def _fail(self, error: Exception) -> None:
        """Take the ending from an error of the tree."""
        known = [leaf for leaf in leaves(error) if isinstance(leaf, ScrunError)]
        reason = "scrun-failure"
        if known:
            self.failure = known[0]
            text = str(known[0])
            reason = getattr(known[0], "reason", reason)
            # what an engine fails at may have been the release; a refusal holds nothing
            self._job_may_be_left = isinstance(known[0], EngineError) and not isinstance(
                known[0], AllocationRefused
            )
        else:
            text = described(error)
            self.failure = ScrunError(text)
            fault(f"container {self.id}", error)
            self._job_may_be_left = True  # the fault may have met its release
            import traceback

            self._journal.write("debug", "".join(traceback.format_exception(error)))
        # while `create` waits it ends with this, and tells
        self._journal.write("error", text, reported=not self.settled.is_set())
        self._ending = self._ending or taken(reason, text)

    async def _mark_out_of_memory(self) -> None:
        """Leave podman its mark, before the anchor ends. The bundle's file system may hang."""
        if self.phase is Phase.STOPPED or self._ending is None:
            return
        if self._ending.reason == "out-of-memory":
            environment = self._order.setting.environment
            with trio.move_on_after(_MARK, shield=True):
                await in_thread(
                    conmon.tell_out_of_memory, self._order.bundle, environment, self.pid,
                    abandon=True,
                )  # fmt: skip

    def _finish(self, ending: Ending) -> None:
        """Tell the world that the container has ended; once."""
        self._become(Phase.STOPPING)
        if self.phase is not Phase.STOPPING:
            return
        if self._notices.pending:
            self._job_waits(None)
        self._notices.close()
        explained = ending.reason in _EXPLAINED and ending.text and not ending.told
        if explained and self.settled.is_set():
            self._stdio.say(ending.text)
        self._stdio.close()
        if self._process is not None and self._process.ending is not None:
            ending = as_it_ended(ending, self._process.ending)
        annotations = {"org.scrun.reason": ending.reason}
        if ending.status >= 0:
            annotations["org.scrun.exit_status"] = str(ending.status)
        if ending.text:
            annotations["org.scrun.message"] = ending.text
        # Before the record: who kills us between the two shall not take the engine's status away.
        if self._process is None:
            self._anchor.end(ending.status)
        self._caller.release()
        self._become(Phase.STOPPED, annotations)
        self.exit_status = ending.status if ending.status >= 0 else LOST
        self.ended.set()
