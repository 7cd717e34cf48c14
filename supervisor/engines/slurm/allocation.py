"""A job that salloc holds for as long as a block lasts.

salloc runs a keepalive: a shell that blocks on a socket of the supervisor. When the supervisor
releases the job, the shell reads the container's exit status and exits with it, and salloc
relinquishes the job with that status. When the supervisor dies, the shell reads end of file and
exits with 1. A pending job has no such shell yet; a second one waits in the same way beside it,
and cancels the job by its id.

Nothing signals salloc. It talks to slurmctld from within its signal handler: a signal that arrives
while salloc is busy, as around a grant or just after the shell ended, leaves one in ten (22.05)
waiting for ever, with the job held. So salloc gets no parent-death signal either.

salloc reports what happens to the job as it happens. Only the reason why a job is pending needs a
query (`pending.py`).
"""

import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGTERM

import msgspec
import trio

from scrun.core.errors import AllocationRefused
from scrun.model.states import Ending, taken
from scrun.model.waiting import Waiting, in_vain_line
from scrun.supervisor.children.processes import Child, child
from scrun.supervisor.children.pumps import messages
from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.core.deposits import JOB
from scrun.supervisor.core.nurseries import until, unwrapped
from scrun.supervisor.engines.slurm.cancel import cancel_job
from scrun.supervisor.engines.slurm.grammar import is_chatter
from scrun.supervisor.engines.slurm.job_ending import query_ending
from scrun.supervisor.engines.slurm.job_state import JobState
from scrun.supervisor.engines.slurm.pending import Queue
from scrun.supervisor.engines.slurm.release import cancel_in_the_end, may_pass
from scrun.supervisor.engines.slurm.tools import Tools, lean
from scrun.supervisor.engines.slurm.unknown import jobs_of_a_killed_salloc

# The socket is its standard input: dash can name one-digit descriptors only, and salloc keeps
# open whatever else it inherits.
_KEEPALIVE = 'echo $$ >&0; read -r status 2>/dev/null; exit "${status:-1}"'
_CANCELLER = 'read -r _; exec "$@"'
# salloc's own directory becomes WorkDir and SLURM_SUBMIT_DIR of the job. It is a user's directory
# and may hang, so a separate process enters it. salloc reports errors, for its --chdir.
_IN_DIRECTORY = 'cd -- "$0" 2>/dev/null; exec "$@"'
_LAST_WORDS = 0.1
_FIRST_WORDS = 5.0
LAST_BREATH = 3.0
_NOT_KNOWN = 1  # the job's exit status when the container's is unknown


class Held(msgspec.Struct, frozen=True):
    """A job that can run steps.

    Attributes:
        job_id: Its number.
        environment: Its SLURM_* variables.
        state: What salloc has reported; None for a job that scrun did not allocate.
    """

    job_id: str
    environment: dict[str, str]
    state: JobState | None = None


class AllocationRequest(msgspec.Struct, frozen=True):
    """What to ask salloc for.

    Attributes:
        options: Its options.
        directory: The working directory of salloc and of the job.
        because: Which options come from the engine's flags and config.json, for messages; or "".
        deadline: Seconds that releasing the job may take.
    """

    options: Sequence[str]
    directory: str
    because: str
    deadline: float


class Allocation:
    """The conversation with one salloc."""

    def __init__(self, tools: Tools, request: JobRequest) -> None:
        self.state = JobState()
        self.known = trio.Event()
        self._changed = trio.Event()
        self._reported = ("", False, False, False)
        self._in_vain: Waiting | None = None
        self._tools = tools
        self._request = request
        self._child_env = tools.child_env(request.child_env)

    def feed(self, line: str) -> None:
        """Take a line that salloc has said."""
        state = self.state
        state.feed(line)
        self._request.journal.write("debug" if is_chatter(line) else "info", line)
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
        """Wait until the job is revoked."""
        while not self.state.revoked:
            await self._changed.wait()

    def granted(self, environment: dict[str, str]) -> Held:
        """Return the granted job."""
        self.state.is_job(environment["SLURM_JOB_ID"])
        self._report()
        return Held(self.state.job_id, environment, self.state)

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

    async def watch_pending(self, queue: Queue, because: str, scope: trio.CancelScope) -> None:
        """Report why the job is pending, and have it cancelled when the supervisor dies.

        Args:
            queue: The source of the reasons.
            because: What the caller asked for, for messages.
            scope: The wait for the job, cancelled when it is in vain.
        """

        async def watch(job_id: str) -> None:
            self._in_vain = await queue.watch(self._request, self._child_env, job_id, because)
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
        ours, theirs = socket.socketpair()
        words = ["/bin/sh", "-c", _CANCELLER, "sh", self._tools.scancel, job_id]
        with ours, theirs:
            async with child(words, self._child_env, stdin=theirs.fileno(), dies_with_us=False):
                theirs.close()
                await trio.sleep_forever()

    async def stop_waiting(self, scope: trio.CancelScope) -> None:
        """Cancel the wait for a job that is gone: salloc may not end by itself then."""
        await self._revoked()
        await trio.sleep(_FIRST_WORDS)
        scope.cancel()

    async def give_up(self, salloc: Child, line: trio.socket.SocketType) -> bool:
        """Give up a job that was not granted yet, but may be at this moment.

        Returns:
            Whether Slurm knows that it ended, so that salloc has nothing left to do.
        """
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
        """Cancel jobs that salloc may have left behind.

        Args:
            salloc: The salloc, which has ended.
            began: When it was started.
        """
        state = self.state
        doubtful = [state.job_id] if state.job_id and not state.gone else []
        if not state.job_id and await salloc.wait() < 0:
            doubtful = await jobs_of_a_killed_salloc(
                self._tools, self._child_env, salloc.pid, began
            )
        for job_id in doubtful:
            await cancel_in_the_end(self._tools, self._child_env, self._request.journal, job_id)

    async def reason(self, because: str) -> tuple[str, str]:
        """Return why there is no job, in Slurm's words.

        Args:
            because: What the caller asked for.

        Returns:
            The message, and the reason for the record (see `scrun.model.states`).
        """
        state = self.state
        if self._in_vain is not None:
            return in_vain_line(state.job_id, self._in_vain, because), "scrun-failure"
        if state.withdrawn:
            ending = await query_ending(self._tools, self._child_env, state.job_id)
            if ending is None:
                return state.reason, state.ending.reason
            return f"{ending.text}, while it waited for resources", ending.reason
        return (f"{state.reason} ({because})" if because else state.reason), "scrun-failure"


@asynccontextmanager
async def allocated(
    tools: Tools, queue: Queue, request: JobRequest, salloc_request: AllocationRequest
) -> AsyncIterator[Held]:
    """Allocate a job and hold it.

    Args:
        tools: Slurm's tools.
        queue: The reasons of pending jobs.
        request: The request, with callbacks for progress.
        salloc_request: What to ask salloc for.

    Raises:
        AllocationRefused: Slurm gave no job; with its reason.
    """
    allocation = Allocation(tools, request)
    ours, theirs = socket.socketpair()
    command = ["/bin/sh", "-c", _IN_DIRECTORY, salloc_request.directory, tools.salloc]
    # with -v it reports that the job is suspended
    command += ["-v", *salloc_request.options, "--", "/bin/sh", "-c", _KEEPALIVE]
    line = trio.socket.from_stdlib_socket(ours)
    environment: dict[str, str] | None = None
    began = time.time()
    salloc: Child | None = None

    def hold(said: int) -> None:
        request.job_deposit.hold({f"{JOB}salloc_said": said})

    try:
        with line, theirs:
            async with (
                messages(allocation.feed, hold) as stderr,
                child(
                    command,
                    lean(tools.child_env(request.child_env)),
                    stdin=theirs.fileno(),
                    stderr=stderr,
                    dies_with_us=False,
                ) as salloc,
            ):
                theirs.close()
                kept = {f"{JOB}line": line.fileno(), f"{JOB}salloc": salloc.pidfd}
                request.job_deposit.hold(kept, salloc=salloc.pid, salloc_began=began)
                try:
                    async with unwrapped() as pending:
                        waiting = pending.cancel_scope
                        pending.start_soon(
                            allocation.watch_pending, queue, salloc_request.because, waiting
                        )
                        pending.start_soon(allocation.stop_waiting, waiting)
                        environment = _environment(await _keepalive_pid(line))
                        pending.cancel_scope.cancel()
                    if environment is not None:
                        held = allocation.granted(environment)
                        request.job_deposit.note(job=held.job_id, environment=environment)
                        async with unwrapped() as watching:
                            watching.start_soon(allocation.watch, salloc)
                            try:
                                yield held
                            finally:
                                watching.cancel_scope.cancel()
                finally:
                    gone = False
                    request.job_deposit.drop(JOB)
                    if environment is None:
                        gone = await allocation.give_up(salloc, line)
                    else:
                        send_status(line, request.ending())
                    line.close()  # the keepalive ends, and salloc relinquishes the job
                    with trio.move_on_after(
                        LAST_BREATH if gone else salloc_request.deadline, shield=True
                    ):
                        await salloc.wait()
    finally:
        if salloc is not None:
            with trio.CancelScope(shield=True):
                await allocation.cancel_leftovers(salloc, began)
    if environment is None:
        reason, kind = await allocation.reason(salloc_request.because)
        raise AllocationRefused(f"no job for container {request.container}: {reason}", kind)


def send_status(line: trio.socket.SocketType | socket.socket, ending: Ending | None) -> None:
    """Send the keepalive its exit status."""
    status = _NOT_KNOWN if ending is None else ending.status
    with contextlib.suppress(OSError):  # the keepalive may have ended with the job
        # a few bytes into an empty socket: this does not block
        os.write(line.fileno(), b"%d\n" % status)


async def _keepalive_pid(line: trio.socket.SocketType) -> str:
    """Wait until the job is granted and the keepalive runs.

    Returns:
        The keepalive's pid, or "" when salloc ended before it ran one.
    """
    received = b""
    while not received.endswith(b"\n"):
        part = await line.recv(32)
        if not part:
            return ""
        received += part
    return received.decode().strip()


def _environment(pid: str) -> dict[str, str] | None:
    """Return the SLURM_* variables that salloc gave the keepalive; None when that is gone."""
    try:
        content = Path("/proc", pid or "0", "environ").read_bytes()
    except OSError:
        return None
    pairs = (os.fsdecode(entry).partition("=") for entry in content.split(b"\0") if entry)
    found = {name: value for name, _, value in pairs if name.startswith("SLURM_")}
    return found if "SLURM_JOB_ID" in found else None
