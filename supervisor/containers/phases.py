"""The phases of a container, and how it ends.

Every end is the same: `end` cancels the tree of `supervisor.containers.container` and keeps the
reason; the levels clean up in order. The first reason counts.
"""

import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NamedTuple

import msgspec
import trio

from scrun.cli.columns import usage_line
from scrun.core.errors import (
    AllocationRefused,
    EngineError,
    ScrunError,
    StagingError,
    StateError,
    described,
    leaves,
)
from scrun.model.record import ENDING_SINCE, OUTPUT
from scrun.model.states import (
    TAKEN,
    Ending,
    Phase,
    SignalAction,
    answer_to_signal,
    as_it_ended,
    killed,
    may_become,
    not_running,
    taken,
)
from scrun.model.usage import STARTED, USAGE, Usage
from scrun.model.waiting import Waiting, suspended_line
from scrun.oci.config import Bundle
from scrun.oci.lookup import Found, Unknown
from scrun.oci.signals import signal_name, stop_signal
from scrun.protocol.anchor import LOST
from scrun.settings.slurm.request_sources import read_flags, read_requests
from scrun.supervisor.containers import conmon
from scrun.supervisor.containers.anchors import Anchor
from scrun.supervisor.containers.audit import Trail
from scrun.supervisor.containers.caller import Caller
from scrun.supervisor.containers.capture import CapturedOutput, Followed
from scrun.supervisor.containers.container_network import ContainerNetwork
from scrun.supervisor.containers.keeping import CAPTURED, Keeping
from scrun.supervisor.containers.ledger import Ledger, now
from scrun.supervisor.containers.live_session import Execs
from scrun.supervisor.containers.names import recorded
from scrun.supervisor.containers.notices import Notices
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.containers.usage import used
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.contracts.deleter import Deleter
from scrun.supervisor.contracts.engine import Job, JobRequest, handles
from scrun.supervisor.contracts.first_process import FirstProcess
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.core.nurseries import Tasks, unwrapped
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.log.supervisor_log import fault, traceback_of


class RunningContainer(NamedTuple):
    """A running container; `bundle` is the submitted one."""

    job: Job
    bundle: Bundle
    staged: Staged
    journal: Journal


_BY_ITSELF = ("exited", "not-found", "not-executable")
_EXPLAINED = (*TAKEN, "not-found", "not-executable")
_TOLD = ("cancelled", "preempted", "time-limit")
"""Why Slurm sends SIGTERM to what runs, and SIGKILL later."""
_MARK = 2.0
_NOTICING = 5.0


class Phases:
    """The phases of a container, noted in its record, and the way out of each.

    Attributes:
        id: Its id.
        directory: Its record.
        journal: Its messages.
        phase: Its current phase.
        anchor_known: Set when the pid of its anchor is known.
        queued: Set when its job id is known, or what it waits for.
        settled: Set when it is created, or never will be: `create` can be answered.
        there: Set when it can be worked with, or has ended.
        gone: Set when the whole tree is cleaned up.
        failure: Why it was not created.
        failure_shown: Whether the caller's standard error has that already.
        delete_requested: Whether somebody asked to delete it.
        deleter: By whom, if that is known.
        paused: Whether its processes are paused.
        suspended: Whether Slurm has suspended its whole job.
        ended: Set when it has stopped, and `exit_status` is known.
        exit_status: Its exit status, then.
        log: Its log, for those who follow it.
        captured: Its output, if that goes through us.
        process: Its first process, if that is a child of the engine's monitor.
        programs: Those of `exec` in it.
        trail: What a site's audit has of it.
        is_being_killed: Whether somebody has sent SIGKILL, which need not have arrived yet.
    """

    is_being_killed = False

    def __init__(
        self,
        create_request: CreateRequest,
        ledger: Ledger,
        anchor: Anchor,
        stdio: Stdio,
        caller: Caller,
    ) -> None:
        self.id = create_request.id
        self._deposit = ledger.deposit
        self.phase = Phase.CREATING
        self.anchor_known = caller.anchor_known
        self.queued = trio.Event()
        self.settled = trio.Event()
        self.there = trio.Event()
        self.gone = trio.Event()
        self.failure: ScrunError | None = None
        self.failure_shown = False
        self.delete_requested = False
        self.deleter: Deleter | None = None
        self.paused = False
        self.suspended = False
        self.runs = trio.Event()
        self.ended = trio.Event()
        self.exit_status = 0
        self._ledger = ledger
        self.directory = ledger.directory
        self.journal = ledger.journal
        self.trail = Trail(ledger, stdio.say, required=create_request.settings.log.audit_required)
        self.log = Followed(self.journal.path, self.journal.own)
        self.journal.when_written(self.log.grew)
        self._create_request = create_request
        self._anchor = anchor
        self._stdio = stdio
        self._is_explained = False
        self._caller = caller
        self._keeping = Keeping(create_request, ledger, anchor, stdio, caller)
        self._notices = Notices(stdio.say)
        self.captured: CapturedOutput | None = None
        self._outputs = Tasks(f"container {create_request.id}: its output")
        self._scope = trio.CancelScope()
        self._beside = Tasks(f"container {self.id}")
        self.programs = Execs(self._beside, self._deposit)
        self._is_lost = False
        self._ending: Ending | None = None
        self._job: Job | None = None
        self._job_may_be_left = False
        self.process: FirstProcess | None = None
        self._first_process: FirstProcess | None = None
        self._running: RunningContainer | None = None
        self._bundle: Bundle | None = None
        self._network = ContainerNetwork(create_request, self.journal, self._deposit)
        self._named: Mapping[str, str] = {}
        self._program: Found | Unknown = Unknown("")

    @property
    def alive(self) -> bool:
        """Whether anything of it is left to clean up."""
        return not self.gone.is_set()

    @property
    def pid(self) -> int:
        """The pid that its engine knows: of its first process or its anchor; 0 before that."""
        return self._caller.anchor if self.process is None else self.process.pid

    @property
    def status(self) -> str:
        """Its status; "paused" is crun's and runc's, not in the runtime specification."""
        if self.phase is Phase.STOPPING and not self.settled.is_set():
            return Phase.CREATING.status
        paused = (self.paused or self.suspended) and self.phase is Phase.RUNNING
        return "paused" if paused else self.phase.status

    @property
    def state(self) -> bytes:
        return self._ledger.state(self.status)

    @property
    def in_step(self) -> bool:
        """Whether its anchor is a `run` in a step of Slurm's, which signals that."""
        return self._create_request.in_step and self._create_request.in_foreground

    @property
    def ending(self) -> bool:
        """Whether it is being ended, or has ended and is being cleaned up."""
        over = self.phase in (Phase.STOPPING, Phase.STOPPED)
        return self._scope.cancel_called or (over and self.alive)

    @property
    def _described(self) -> str:
        """Its phase, for error messages."""
        if self.ending and self.phase is not Phase.STOPPED:
            return "being ended"
        return self.phase.status

    def become(
        self, phase: Phase, annotations: Mapping[str, str] | None = None, *, later: bool = False
    ) -> bool:
        """Enter and record another phase; return whether it may follow the current one."""
        if phase is Phase.STOPPING and self._is_lost:
            self._scope.cancel()  # it has ended by itself, and its job is of no more use
        if not may_become(self.phase, phase):
            return False
        self.phase = phase
        if phase is Phase.RUNNING:
            self._stdio.keep_error_only()
            self.journal.rest()
            self.runs.set()
            annotations = {STARTED: now()}
        if phase is Phase.STOPPING:
            annotations = {ENDING_SINCE: now()}
        if "ending" not in self._deposit.facts:  # that is all that a successor would look at
            self._deposit.note(phase=phase.name)
        self.trail.note(ends=phase in (Phase.STOPPING, Phase.STOPPED))
        self._ledger.note(status=self.status, pid=self.pid, annotations=annotations, later=later)
        self.journal.write("verbose", f"it is {phase.name.lower()}")
        return True

    def _carry_sockets(self, job: Job, staged: Staged) -> None:
        """Carry what the container will connect to at its engine's sockets, if it mounts any."""
        if staged.sockets:
            from scrun.supervisor.containers.engine_sockets import carry

            self._beside.begin(partial(carry, staged.sockets, job, self.runs))

    def _captured_output(self) -> CapturedOutput:
        return CapturedOutput(
            os.path.join(self.directory, OUTPUT),
            self._create_request.settings.log.output_limit << 20,
            lambda text: self.journal.write("error", text),
        )

    def _capture(self, captured: CapturedOutput) -> None:
        """Capture its output from now on, so that a successor can go on."""
        self.captured = captured
        captured.keep(
            lambda fds: self._deposit.hold({CAPTURED + name: fd for name, fd in fds.items()})
        )
        self._deposit.note(captured=captured.terminal)
        self._outputs.begin(captured.capture)

    async def keep_unmade(self) -> None:
        """Keep from now on what it needs to outlive us before it is made, if it has to queue."""
        if self._bundle is not None:
            await self._keeping.unmade(self._bundle, self._program)

    async def _keep(self, staged: Staged) -> None:
        """Keep from now on what it needs to outlive us: it is made, and `create` not answered."""
        assert self._bundle is not None
        has_anchor = self.process is None
        await self._keeping.made(self.phase, self._bundle, staged, has_anchor=has_anchor)
        if self._deposit.why_not:
            text = f"it would not outlive the supervisor: {self._deposit.why_not}"
            self.journal.write("verbose", text)

    @property
    def is_ours_alone(self) -> bool:
        """Whether no other supervisor could ever take it over, and it is not being ended."""
        return self.alive and not self.ending and bool(self._deposit.why_not)

    @property
    def why_it_stays(self) -> str:
        """Why another supervisor cannot take it over now, or ""; "" as well if it has ended."""
        if not self.alive or self._deposit.is_kept:
            return ""
        if self.is_ours_alone:
            return self._deposit.why_not
        return "it is being ended" if self.ending else f"it is {self.phase.name.lower()}"

    def _runs(self) -> None:
        if self.become(Phase.RUNNING):
            self.trail.started()

    def _job_is_known(self, job_id: str, owned: bool) -> None:
        self._ledger.job_is_known(job_id, owned)
        self._notices.queued(job_id)
        self.queued.set()

    def _job_waits(self, news: Waiting | None) -> None:
        if self.ended.is_set():
            return  # nothing waits any more, though its job may still be in the queue
        self._ledger.job_waits(news)
        self._notices.waits(news)
        if news is not None:
            self.queued.set()  # in a pool it waits without a job

    def _job_suspended(self, suspended: bool) -> None:
        self.suspended = suspended
        self._ledger.note(status=self.status)
        self.journal.write("info", suspended_line(self._ledger.record.job_id, suspended))

    def _has_ended_by_itself(self) -> bool:
        """Return whether its program has ended, and nobody had to end or clean up anything."""
        reason = self._ending.reason if self._ending else ""
        return reason in _BY_ITSELF and self.failure is None and not self._scope.cancel_called

    def _request(self, bundle: Bundle) -> JobRequest:
        config, create_request = bundle.config, self._create_request
        names = recorded(self._ledger.record)
        return JobRequest(
            container=self.id,
            job_name=names.job_name(create_request.settings.slurm.job_name),
            about=names.comment,
            child_env=create_request.child_env,
            directory=create_request.directory,
            record=self.directory,
            journal=self.journal,
            on_job_id=self._job_is_known,
            on_lost=self.lose,
            ending=lambda: self._ending,
            config_requests=read_requests(config.annotations, config.process.env),
            flags=read_flags(config, resources=create_request.settings.slurm.engine_flags),
            on_waiting=self._job_waits,
            on_suspended=self._job_suspended,
            on_deferred_release=partial(self._ledger.note, until_delete=True),
            on_output_lost=self._stdio.say,
            reusable=self._has_ended_by_itself,
            deposit=self._deposit,
            task=create_request.task,
            network=self._network.on_node,
        )

    async def notice(self) -> None:
        """Wait until the end of its process is recorded: the engine may know of it already."""
        if self.process is not None and self.process.over:
            with trio.move_on_after(_NOTICING):
                await self.ended.wait()

    async def running(self, purpose: str) -> RunningContainer:
        """Return what an operation on the running container needs.

        Raises:
            StateError: It does not run.
        """
        await self.notice()
        if self.phase is Phase.WAITING:
            raise StateError(
                f"container {self.id}: {purpose} is not possible yet: {self._notices.reason}"
            )
        if self.phase not in (Phase.STARTING, Phase.RUNNING) or self._running is None:
            raise StateError(
                f"container {self.id}: {purpose} is not possible: it is {self._described}, not "
                "running"
            )
        return self._running

    def set_paused(self, paused: bool) -> None:
        """Record that its processes were paused or resumed."""
        self.paused = paused
        self._ledger.note(status=self.status)
        self.journal.write("verbose", "it is paused" if paused else "it is resumed")

    def end(self, ending: Ending) -> None:
        """Cancel the tree. Only the first reason counts."""
        if self._ending is None:
            self._ending = ending
            if ending.text:
                self.journal.write("info", ending.text)
            self._deposit.note(ending=msgspec.to_builtins(ending))
        if self._running is None and self.phase in (Phase.CREATED, Phase.WAITING):
            self._finish(self._ending)  # nothing of it runs that would have to end first
        else:
            self.become(Phase.STOPPING)
        self._scope.cancel()

    def lose(self, ending: Ending) -> None:
        """End it when Slurm takes its job away, in the time between SIGTERM and SIGKILL.

        The first reason counts, whatever the program's status is then.
        """
        runs = self.phase is Phase.RUNNING and self._ending is None
        lets_end = self._job is not None and self._job.lets_end
        if not (runs and ending.reason in _TOLD and lets_end):
            self.end(ending)
            return
        self._is_lost, self._ending = True, ending
        self.journal.write("info", ending.text)
        self._beside.begin(self._end_in_time)

    async def _end_in_time(self) -> None:
        assert self._ending is not None
        assert self._job is not None
        try:
            async with unwrapped() as nursery:
                nursery.start_soon(self.programs.let_end)
                await self._job.let_end()
        except EngineError as error:
            self.journal.write("verbose", str(error))
        self.end(self._ending)

    async def kill(self, number: int) -> None:
        """Send a signal.

        Raises:
            StateError: The container has no process yet, or no longer.
            EngineError: The signal was not delivered.
        """
        await self.there.wait()
        stop = stop_signal(self._ledger.record.annotations)
        answer = answer_to_signal(self.phase, number, stop)
        if answer is SignalAction.TOO_LATE:
            raise StateError(not_running(self.id))
        if answer is SignalAction.DELIVER and number == 0:
            return  # kill(2): only checks whether there is a process
        if answer is SignalAction.DELIVER and self._job is not None:
            try:
                await self._job.signal(number)
            except EngineError:
                if self.phase is Phase.RUNNING:
                    raise
        elif answer is SignalAction.END:
            name = signal_name(number)
            self.end(killed(number, f"container {self.id} was killed by {name} before its start"))
            await self.ended.wait()
        elif answer is SignalAction.REFUSE:
            raise StateError(
                f"container {self.id} is still being created, without a process that could "
                f"get {signal_name(number)}; TERM or KILL end it"
            )

    @property
    def can_be_killed(self) -> bool:
        """Whether SIGKILL can be sent by `begin_to_kill` now."""
        return answer_to_signal(self.phase, signal.SIGKILL) is SignalAction.DELIVER

    def is_to_be_killed(self) -> None:
        """Note that a successor has to call `begin_to_kill` if we die before we do."""
        self.is_being_killed = True
        self._deposit.note(killed=True)

    def begin_to_kill(self) -> None:
        """Send SIGKILL in the background; end the container if that fails."""

        async def kill() -> None:
            try:
                await self.kill(signal.SIGKILL)
            except (EngineError, OSError) as error:
                self.journal.write("error", described(error))
                self.end(killed(signal.SIGKILL, f"container {self.id} was killed"))

        self.begin(kill)

    @property
    def about_to_run(self) -> bool:
        """Whether its program is being started right now, with no queue to wait in."""
        return self._first_process is not None and self.phase is Phase.STARTING

    def resized(self) -> None:
        if self._job is not None:
            self._job.resized()

    def begin(self, call: Callable[[], Awaitable[None]]) -> None:
        """Start a task that ends with the container; do nothing if that has ended."""
        self._beside.begin(call)

    async def handles(self, number: int) -> bool:
        """Tell whether its program handles a signal; False if that is not known."""
        return self._job is not None and await handles(self._job, number)

    def _fail(self, error: Exception) -> None:
        """Set the ending from an error of the tree."""
        known = [leaf for leaf in leaves(error) if isinstance(leaf, ScrunError)]
        reason = "scrun-failure"
        if known:
            self.failure = known[0]
            text = str(known[0])
            reason = getattr(known[0], "reason", reason)
            # the engine may have failed to release the job; a refused request has none
            self._job_may_be_left = isinstance(known[0], EngineError) and not isinstance(
                known[0], AllocationRefused
            )
        else:
            text = described(error)
            self.failure = ScrunError(text)
            fault(f"container {self.id}", error)
            self._job_may_be_left = True  # it may have interrupted the release
            self.journal.write("debug", traceback_of(error))
        # a `create` that waits reports this itself
        self.journal.write("error", text, reported=not self.settled.is_set())
        shown = isinstance(self.failure, EngineError) and self.failure.shown
        self._ending = self._ending or taken(reason, text, shown=shown)
        # nobody has got the terminal of a console socket yet, nor captured output
        is_seen = not self._stdio.error_is_captured and self._create_request.console is None
        self.failure_shown = shown and is_seen

    def _has_lost_changes(self, error: StagingError) -> None:
        """Make it a failure that its changes may not have come back.

        Raises:
            StagingError: It has not run.
        """
        if self._ending is None:
            raise error
        self.journal.write("error", str(error))
        status = self._ending.status or TAKEN["scrun-failure"]
        self._ending = Ending(status, "scrun-failure", str(error))

    async def _mark_out_of_memory(self) -> None:
        """Create podman's marker before the anchor ends. The bundle's file system may hang."""
        if self.phase is Phase.STOPPED or self._ending is None:
            return
        if self._ending.reason == "out-of-memory":
            environment = self._create_request.child_env.environment
            with trio.move_on_after(_MARK, shield=True):
                await in_thread(
                    conmon.tell_out_of_memory, self._create_request.bundle, environment, self.pid,
                    abandon=True,
                )  # fmt: skip

    async def _report_end(self) -> None:
        """Report its end to all, if it has one and was created."""
        if self._ending is not None and self.settled.is_set():
            await self._mark_out_of_memory()
            await self._explain_and_finish(self._ending)

    async def _explain_and_finish(self, ending: Ending) -> None:
        self._explain(ending)  # before its status
        request = self._create_request
        if request.settings.log.usage and request.in_foreground and (usage := self._usage()):
            self._stdio.say(usage_line(usage))
        await self._stdio.said()
        self._finish(ending)

    def _usage(self) -> Usage | None:
        resources = {} if self._bundle is None else self._bundle.config.linux.resources
        return used(self._job, self._ledger.record, resources)

    def _explain(self, ending: Ending) -> None:
        """Say once on its standard error why it ended, if its program did not end by itself."""
        is_news = self.settled.is_set() and not (self._is_explained or ending.shown)
        if is_news and ending.text and ending.reason in _EXPLAINED:
            self._is_explained = True
            self._stdio.say(ending.text)

    def _finish(self, ending: Ending) -> None:
        """Report to all, once, that the container has ended."""
        if not self.become(Phase.STOPPING, later=True) and self.phase is not Phase.STOPPING:
            return
        if self._notices.pending:
            self._job_waits(None)
        self._notices.close()
        self._explain(ending)
        self._stdio.close()
        if self.process is not None and self.process.ending is not None:
            ending = as_it_ended(ending, self.process.ending)
        annotations = {"org.scrun.reason": ending.reason}
        if usage := self._usage():
            annotations[USAGE] = msgspec.json.encode(usage).decode()
        if ending.status >= 0:
            annotations["org.scrun.exit_status"] = str(ending.status)
        if ending.text:
            annotations["org.scrun.message"] = ending.text
        # Before the record: if we are killed in between, the engine still gets the status.
        if self.process is None:
            self._anchor.end(ending.status)
        self._caller.release()
        self.become(Phase.STOPPED, annotations)
        self._deposit.end()
        self.exit_status = ending.status if ending.status >= 0 else LOST
        self.ended.set()
