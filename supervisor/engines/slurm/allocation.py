"""The conversation with a salloc: it waits for a job, and holds it for as long as a block lasts.

salloc runs a keepalive: a shell that blocks on a socket of the supervisor. When the supervisor
releases the job, the shell reads the container's exit status and exits with it, and salloc
relinquishes the job with that status. When the supervisor dies and nobody takes over, the shell
reads end of file and exits with 1. A pending job has no such shell yet; a second one, the
canceller, waits in the same way beside it, and cancels the job by its id.

Nothing signals salloc. It talks to slurmctld from within its signal handler: a signal that arrives
while salloc is busy, as around a grant or just after the shell ended, leaves one in ten (22.05)
waiting for ever, with the job held. So salloc gets no parent-death signal either.

salloc reports what happens to the job as it happens. Only the reason why a job is pending needs a
query (`pending.py`).
"""

import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from pathlib import Path
from signal import SIGTERM
from typing import Any

import msgspec
import trio

from scrun.core.errors import AllocationRefused, EngineError, described, leaves
from scrun.model.states import Ending, taken
from scrun.model.waiting import RATE_LIMITED, Waiting, in_vain_line, waiting_line
from scrun.settings.slurm.request_sources import concerned
from scrun.supervisor.children.persistent import canceller, dismiss, foreign_process, is_heard
from scrun.supervisor.children.processes import Child, ChildEnv, child
from scrun.supervisor.children.pumps import messages, received
from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.core.deposits import JOB, STEP
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.nurseries import until, unwrapped
from scrun.supervisor.engines.slurm.grammar import is_chatter
from scrun.supervisor.engines.slurm.job_ending import jobs_of_a_killed_salloc, query_ending
from scrun.supervisor.engines.slurm.job_state import JobState
from scrun.supervisor.engines.slurm.pending import Queue
from scrun.supervisor.engines.slurm.room import PartOfNode
from scrun.supervisor.engines.slurm.signals import cancel_job
from scrun.supervisor.engines.slurm.tools import Tools, lean, of_a_container, remedy
from scrun.supervisor.log.journal import Journal

_LAST_WORDS = 0.1
_MOST_SAID, _LONGEST_SAID = 20, 1000
_CANCELLER_LINE = f"{JOB}canceller"
_FIRST_WORDS, LAST_BREATH = 5.0, 3.0
_PID = 32
_NOT_KNOWN = 1  # the job's exit status when the container's is unknown
_FIRST_PAUSE, _LAST_PAUSE = 1.0, 60.0
# The socket is its standard input: dash can name one-digit descriptors only, and salloc keeps
# open whatever else it inherits.
KEEPALIVE = 'echo $$ >&0; read -r status 2>/dev/null; exit "${status:-1}"'
# salloc's own directory becomes WorkDir and SLURM_SUBMIT_DIR of the job. It is a user's directory
# and may hang, so a separate process enters it. salloc reports errors, for its --chdir.
_IN_DIRECTORY = 'cd -- "$0" 2>/dev/null; exec "$@"'
_STEP_ENDS = 10.0
_SAYS = (f"{STEP}from_srun", f"{STEP}words", f"{STEP}said.")
_LINE, _SALLOC, _SAID = f"{JOB}line", f"{JOB}salloc", f"{JOB}salloc_said"


class Allocation(msgspec.Struct, frozen=True):
    """A job that can run steps.

    Attributes:
        state: What salloc has reported; None for a job that scrun did not allocate.
        fds, facts: What another supervisor needs to hold it, too; the descriptors stay salloc's.
        slowed: Takes whether slurmctld slows down a tool that works for it.
        part: What a container of a pool has of it; None: all.
    """

    job_id: str
    environment: dict[str, str]
    state: JobState | None = None
    fds: Mapping[str, int] = {}
    facts: Mapping[str, Any] = {}
    slowed: Callable[[bool], None] = lambda _: None
    part: PartOfNode | None = None


def with_own(held: Allocation, request: JobRequest) -> Allocation:
    """Return a job with the variables that belong to one container."""
    theirs = {"SLURM_SUBMIT_DIR": request.directory, "SLURM_CONTAINER_ID": request.container}
    own = {name: theirs[name] for name in of_a_container(held.environment)}
    return msgspec.structs.replace(held, environment={**held.environment, **own})


class AllocationRequest(msgspec.Struct, frozen=True):
    """What to ask salloc for.

    Attributes:
        directory: The working directory of salloc and of the job.
        because: Which options come from the engine's flags and config.json, for messages; or "".
        deadline: Seconds that releasing the job may take.
    """

    options: Sequence[str]
    directory: str
    because: str
    deadline: float


class SallocConversation:
    """The conversation with one salloc."""

    def __init__(
        self, tools: Tools, queue: Queue, request: JobRequest, terms: AllocationRequest
    ) -> None:
        self.state = JobState()
        self.known = trio.Event()
        self._changed = trio.Event()
        self._reported = ("", False, False, False)
        self._in_vain: Waiting | None = None
        self._said: list[str] = []
        self._canceller = -1
        self._fds: dict[str, int] = {}
        self._facts: dict[str, Any] = {}
        self._tools = tools
        self._queue = queue
        self._request = request
        self._terms = terms
        self._slowed = self._told = False
        self._child_env = tools.child_env(request.child_env)

    def hold(self, fds: Mapping[str, int], **facts: object) -> None:
        """Let another supervisor hold the job, too: a successor, or one that borrows it."""
        self._fds.update(fds)
        self._facts.update(facts)
        self._request.job_deposit.hold(fds, **facts)

    def feed(self, line: str) -> None:
        """Take a line that salloc has said."""
        self.state.feed(line)
        chatter = is_chatter(line)
        if not (chatter or self.state.slowed):
            self._said = [*self._said[1 - _MOST_SAID :], line[:_LONGEST_SAID]]
            self._request.job_deposit.note(said=self._said)
        self._request.journal.write("debug" if chatter else "info", line)
        self.slowed(self.state.slowed)
        self._report()

    def slowed(self, slowed: bool) -> None:
        """Tell, of the job that has to come or to begin, that slurmctld slows a tool down."""
        if slowed:
            self._queue.spare()
        state = self.state
        is_news = slowed is not self._slowed
        if is_news and not (slowed and (state.is_queued or state.gone)):
            self._slowed, news = slowed, Waiting(RATE_LIMITED) if slowed else None
            if slowed and not self._told:
                self._told = True
                line = waiting_line(state.job_id, Waiting(RATE_LIMITED), explained=True)
                self._request.journal.write("info", line)
            self._request.on_waiting(news)

    def go_on(self, found: Inheritance) -> None:
        """Know what a dead supervisor knew, by what it has left; the descriptors are owned now."""
        if (job := found.facts.get("job")) is not None:
            self.state.is_job(job)
        self._said = [*found.facts.get("said", ())]
        for line in self._said:
            self.state.feed(line)
        self._canceller = found.fds.pop(_CANCELLER_LINE, -1)
        self._report()

    def _report(self) -> None:
        """Record the job's id and state when they become known or change."""
        state = self.state
        current = (state.job_id, state.granted, state.revoked, state.suspended)
        if current == self._reported:
            return
        if state.job_id != self._reported[0]:
            self._request.on_job_id(state.job_id, True)
            self.known.set()
        if state.suspended is not self._reported[3]:
            self._request.on_suspended(state.suspended)
        self._reported = current
        self._changed.set()
        self._changed = trio.Event()

    async def _revoked(self) -> None:
        while not self.state.revoked:
            await self._changed.wait()

    def granted(self, environment: dict[str, str]) -> Allocation:
        self.state.is_job(environment["SLURM_JOB_ID"])
        self._report()
        job_id, state = self.state.job_id, self.state
        return Allocation(job_id, environment, state, self._fds, self._facts, self.slowed)

    async def watch(self, salloc: Child) -> None:
        """Report the loss of the job. A release cancels this first."""
        async with until(salloc.wait):
            await self._revoked()
            await trio.sleep(_LAST_WORDS)  # the next line may have the cause
        if self.state.revoked:
            ending = self.state.ending
            if ending.reason == "cancelled":
                ending = (
                    await query_ending(self._tools, self._child_env, self.state.job_id) or ending
                )
            self._request.on_lost(ending)
        else:
            text = f"job {self.state.job_id} is lost: salloc ended unexpectedly"
            self._request.on_lost(taken("scrun-failure", text))

    async def watch_pending(self, scope: trio.CancelScope) -> None:
        """Report why the job is pending, and cancel `scope` when waiting is in vain.

        A canceller ends it if the supervisor dies.
        """

        async def watch(job_id: str) -> None:
            self._in_vain = await self._queue.watch(
                self._request, self._child_env, job_id, self._terms.because
            )
            scope.cancel()

        while True:
            changed, state = self._changed, self.state
            async with unwrapped() as nursery:
                if state.job_id:
                    nursery.start_soon(watch, state.job_id)
                    if not state.granted:
                        nursery.start_soon(self._cancel_with_supervisor, state.job_id)
                await changed.wait()
                nursery.cancel_scope.cancel()

    async def _cancel_with_supervisor(self, job_id: str) -> None:
        """Keep a canceller for as long as the job is pending."""
        try:
            if self._canceller >= 0 and is_heard(self._canceller):
                await trio.sleep_forever()
            self._dismiss_canceller()
            deposit = self._request.job_deposit
            async with canceller(
                [self._tools.scancel, job_id],
                self._child_env,
                lambda line: deposit.hold({_CANCELLER_LINE: line}),
            ):
                await trio.sleep_forever()
        finally:
            self._dismiss_canceller()

    def _dismiss_canceller(self) -> None:
        """Dismiss the canceller, ours or that of a supervisor that has died."""
        if self._canceller >= 0:
            dismiss(self._canceller)
            os.close(self._canceller)
            self._canceller = -1
        self._request.job_deposit.drop(_CANCELLER_LINE)

    async def stop_waiting(self, scope: trio.CancelScope) -> None:
        """Cancel the wait for a job that is gone: salloc may not end by itself then."""
        await self._revoked()
        await trio.sleep(_FIRST_WORDS)
        scope.cancel()

    @asynccontextmanager
    async def held(
        self,
        salloc: Child,
        line: trio.socket.SocketType,
        environment: dict[str, str] | None = None,
    ) -> AsyncIterator[Allocation | None]:
        """Wait for the job, and hold it while the block runs; None: Slurm gave no job.

        Args:
            line: Our end of the keepalive's socket; it is closed to release the job.
            environment: Its variables, if it was granted already.
        """
        request = self._request
        try:
            if environment is None:
                environment = await self._granted_environment(line)
                await trio.lowlevel.checkpoint()  # what salloc has said before is read now
                if environment is None or self.state.revoked:
                    yield None
                    return
            held = self.granted(environment)
            request.job_deposit.note(job=held.job_id, environment=environment)
            async with unwrapped() as watching:
                watching.start_soon(self.watch, salloc)
                try:
                    yield held
                finally:
                    watching.cancel_scope.cancel()
        finally:
            gone = False
            self._dismiss_canceller()  # an inherited one, though the job had started
            request.job_deposit.drop(JOB)
            if environment is None:
                gone = await self._give_up(salloc, line)
            else:
                _send_status(line, request.ending())
            line.close()  # the keepalive ends, and salloc relinquishes the job
            with trio.move_on_after(LAST_BREATH if gone else self._terms.deadline, shield=True):
                self.state.status = await salloc.wait()

    async def _granted_environment(self, line: trio.socket.SocketType) -> dict[str, str] | None:
        """Wait until the keepalive runs; return its SLURM_* variables, or None without a job."""
        found: dict[str, str] | None = None
        async with unwrapped() as pending:
            scope = pending.cancel_scope
            pending.start_soon(self.watch_pending, scope)
            pending.start_soon(self.stop_waiting, scope)
            found = _environment(await _keepalive_pid(line))
            scope.cancel()
        return found

    async def _give_up(self, salloc: Child, line: trio.socket.SocketType) -> bool:
        """Give up a job that may be granted at this moment; return whether Slurm has ended it."""
        state = self.state
        with trio.move_on_after(_FIRST_WORDS, shield=True):
            async with until(salloc.wait):  # salloc closes the line a moment before it ends
                await self.known.wait()
                if state.granted:
                    # Its shell is about to start. A salloc whose job is cancelled just before that
                    # hangs (one in 300 containers cancelled during `create`), see above.
                    await _keepalive_pid(line)
                    return False
        if not salloc.ended and not state.gone:
            with trio.CancelScope(shield=True):
                return await self._end_job(salloc)
        return state.gone

    async def _end_job(self, salloc: Child) -> bool:
        """Cancel a job for which salloc runs no shell yet; return whether that worked."""
        if self.state.job_id:
            try:
                await cancel_job(self._tools, self._child_env, self.state.job_id)
            except Exception as error:
                if not may_pass(error):
                    raise
                # then salloc is stuck as well, and has to end first
            else:
                return True
        salloc.signal(SIGTERM)  # no id: slurmctld does not answer, and there is no job yet
        return False

    async def cancel_leftovers(self, salloc: Child, began: float) -> None:
        """Cancel jobs that a salloc which has ended may have left behind."""
        state = self.state
        doubtful = [state.job_id] if state.job_id and not state.gone else []
        if not state.job_id and await salloc.wait() < 0:
            doubtful = await jobs_of_a_killed_salloc(
                self._tools, self._child_env, salloc.pid, began
            )
        for job_id in doubtful:
            await cancel_in_the_end(self._tools, self._child_env, self._request.journal, job_id)

    async def refusal(self) -> AllocationRefused:
        """Return why there is no job, in Slurm's words."""
        reason, kind = await self._reason()
        reason += remedy(reason, self._child_env.environment)
        return AllocationRefused(f"no job for container {self._request.container}: {reason}", kind)

    async def _reason(self) -> tuple[str, str]:
        state, because = self.state, self._terms.because
        if self._in_vain is not None:
            return in_vain_line(state.job_id, self._in_vain, because), "scrun-failure"
        if state.withdrawn:
            ending = await query_ending(self._tools, self._child_env, state.job_id)
            if ending is None:
                return state.reason, state.ending.reason
            when = "" if state.granted else ", while it waited for resources"
            return f"{ending.text}{when}", ending.reason
        asked = concerned(because, state.reason)
        return (f"{state.reason} ({asked})" if asked else state.reason), "scrun-failure"


def _send_status(line: trio.socket.SocketType, ending: Ending | None) -> None:
    status = _NOT_KNOWN if ending is None else ending.status
    with suppress(OSError):  # the keepalive may have ended with the job
        os.read(line.fileno(), _PID)  # else the end would be ECONNRESET for it
    with suppress(OSError):
        # a few bytes into an empty socket: this does not block
        os.write(line.fileno(), b"%d\n" % status)


async def _keepalive_pid(line: trio.socket.SocketType) -> str:
    """Wait until the job is granted and the keepalive runs; return its pid, or "" without a job.

    What it has said stays in the socket as long as the job is held: a successor may have to read
    it again, as what we know of it may not have got to a keeper.
    """
    said = await line.recv(_PID, socket.MSG_PEEK)  # it arrives in one piece
    return said.decode().strip()


def _environment(pid: str) -> dict[str, str] | None:
    """Return the SLURM_* variables that salloc gave the keepalive; None when that is gone."""
    try:
        content = Path("/proc", pid or "0", "environ").read_bytes()
    except OSError:
        return None
    pairs = (os.fsdecode(entry).partition("=") for entry in content.split(b"\0") if entry)
    found = {name: value for name, _, value in pairs if name.startswith("SLURM_")}
    return found if "SLURM_JOB_ID" in found else None


async def cancel_in_the_end(
    tools: Tools, child_env: ChildEnv, journal: Journal, job_id: str
) -> None:
    """Cancel a job that salloc could not release; try until that works.

    Slurm may not answer, and this machine may have no process to spare. Until then the container's
    record keeps the job's id: a supervisor that has to end leaves the job to the next command.
    """
    pause = _FIRST_PAUSE
    doubt = f"job {job_id} may still be there"
    while True:
        try:
            return await cancel_job(tools, child_env, job_id)
        except Exception as error:
            if not may_pass(error):
                raise
            text = described(error)
        message = text if text.startswith(doubt) else f"{doubt}: {text}"
        journal.write("error", f"{message}; trying again in {pause:g} s")
        await trio.sleep(pause)
        pause = min(2 * pause, _LAST_PAUSE)


def may_pass(error: Exception) -> bool:
    """Return whether an error may be temporary: a tool of Slurm failed, or could not start."""
    return all(isinstance(leaf, EngineError | OSError) for leaf in leaves(error))


def allocated(
    tools: Tools, queue: Queue, request: JobRequest, terms: AllocationRequest
) -> AbstractAsyncContextManager[Allocation]:
    """Allocate a job and hold it; AllocationRefused with the reason of Slurm."""
    conversation, began = SallocConversation(tools, queue, request, terms), time.time()
    command = ["/bin/sh", "-c", _IN_DIRECTORY, terms.directory, tools.salloc]
    # with -v it reports that the job is suspended
    command += ["-v", *terms.options, "--", "/bin/sh", "-c", KEEPALIVE]

    def hold(said: int) -> None:
        conversation.hold({_SAID: said})

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Child, trio.socket.SocketType]]:
        ours, theirs = socket.socketpair()
        with trio.socket.from_stdlib_socket(ours) as line, theirs:
            async with (
                messages(conversation.feed, hold) as stderr,
                child(
                    command,
                    lean(tools.child_env(request.child_env)),
                    stdin=theirs.fileno(),
                    stderr=stderr,
                    dies_with_us=False,
                ) as salloc,
            ):
                theirs.close()
                kept = {_LINE: line.fileno(), _SALLOC: salloc.pidfd}
                conversation.hold(kept, salloc=salloc.pid, salloc_began=began)
                yield salloc, line

    return _held(conversation, opened(), began)


def held_again(
    tools: Tools, queue: Queue, request: JobRequest, terms: AllocationRequest, found: Inheritance
) -> AbstractAsyncContextManager[Allocation]:
    """Hold a dead supervisor's job, or wait for it, as `allocated`; the caller's own as it is."""
    facts = found.facts
    if not is_own(found):
        request.on_job_id(facts["job"], False)
        return nullcontext(Allocation(facts["job"], facts["environment"]))
    conversation = SallocConversation(tools, queue, request, terms)

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Child, trio.socket.SocketType]]:
        ours = socket.socket(fileno=found.take(_LINE))
        pid, pidfd = facts["salloc"], found.take(_SALLOC)
        with trio.socket.from_stdlib_socket(ours) as line:
            async with (
                received(found.take(_SAID), conversation.feed),
                foreign_process(pid, pidfd, "salloc", grace=LAST_BREATH) as salloc,
            ):
                conversation.go_on(found)
                yield salloc, line

    return _held(conversation, opened(), facts["salloc_began"], facts.get("environment"))


@asynccontextmanager
async def _held(
    conversation: SallocConversation,
    opened: AbstractAsyncContextManager[tuple[Child, trio.socket.SocketType]],
    began: float,
    environment: dict[str, str] | None = None,
) -> AsyncIterator[Allocation]:
    """Hold a job, or wait for it, by its salloc and our end of its keepalive's socket."""
    salloc: Child | None = None
    held: Allocation | None = None
    try:
        async with (
            opened as (salloc, line),
            conversation.held(salloc, line, environment) as held,
        ):
            if held is not None:
                yield held
    finally:
        if salloc is not None:
            with trio.CancelScope(shield=True):
                await conversation.cancel_leftovers(salloc, began)
    if held is None:
        raise await conversation.refusal()


def is_own(found: Inheritance) -> bool:
    """Tell whether a job is one that we hold, and not the caller's own."""
    return _LINE in found.fds


@asynccontextmanager
async def held_anew(
    hold: AbstractAsyncContextManager[Allocation], request: JobRequest, found: Inheritance
) -> AsyncIterator[Allocation]:
    """Hold a job in which a dead supervisor has made nothing; end the step that it began."""
    if not is_own(found):  # the others of its pod have ended meanwhile, and nobody needed it
        raise AllocationRefused(f"no job for container {request.container}: it was released")
    async with hold as held:
        request.job_deposit.drop(STEP)
        await _end_step(found)
        yield held


async def _end_step(found: Inheritance) -> None:
    """End the step of a shim that another supervisor has started, if there is one."""
    left = {name: found.take(name) for name in [*found.fds] if name.startswith(STEP)}
    srun = left.pop(f"{STEP}srun", None)
    with ExitStack() as stack:
        for name, fd in left.items():
            # the shim ends at the end of its input; srun reads until then what it says
            if name.startswith(_SAYS):
                stack.callback(os.close, fd)
            else:
                os.close(fd)
        if srun is not None:
            async with foreign_process(
                found.facts["srun"], srun, "srun", grace=LAST_BREATH
            ) as step:
                with trio.move_on_after(_STEP_ENDS):
                    await step.wait()
