"""A job that is held by salloc, for as long as a block lasts.

salloc runs a shell that blocks on a socket of ours. When the supervisor lets go of the job, the
shell reads the container's exit status and ends with it, and salloc gives the job back with that;
when the supervisor dies, the shell reads end of file, and ends with 1. While the job is pending
there is no such shell yet; then another one waits in the same way, and cancels the job by its id.

Nothing signals salloc. It talks to slurmctld from within its signal handler: one that arrives
while salloc is busy, as around a grant or when the shell has just ended, leaves one in ten of
them (22.05) waiting for ever, with the job held. So salloc gets no parent-death signal either.

salloc says what happens to the job, as it happens. Only what a pending one waits for has to be
asked (`pending.py`).
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
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.engines.slurm.cancel import cancel_job
from scrun.supervisor.engines.slurm.fate import ask_fate
from scrun.supervisor.engines.slurm.grammar import is_chatter
from scrun.supervisor.engines.slurm.messages import SallocHeard
from scrun.supervisor.engines.slurm.pending import Queue
from scrun.supervisor.engines.slurm.release import cancel_in_the_end, may_pass
from scrun.supervisor.engines.slurm.tools import Tools, lean
from scrun.supervisor.engines.slurm.unknown import jobs_of_a_killed_salloc

# The socket is its standard input: dash can name one-digit descriptors only, and salloc itself
# keeps whatever else it inherits.
_HOLDER = 'echo $$ >&0; read -r status 2>/dev/null; exit "${status:-1}"'
_CANCELLER = 'read -r _; exec "$@"'
# WorkDir and SLURM_SUBMIT_DIR of the job are where salloc is started. The directory is a user's,
# and may hang: so it is for a process of its own to enter it. What is wrong with it salloc says,
# of its --chdir.
_THERE = 'cd -- "$0" 2>/dev/null; exec "$@"'
_LAST_WORDS = 0.1
_FIRST_WORDS = 5.0
_LAST_BREATH = 3.0
_NOT_KNOWN = 1  # what the job ends with when nobody says how the container did


class Held(msgspec.Struct, frozen=True):
    """A job in hand.

    Attributes:
        job_id: Its number.
        environment: Its SLURM_* variables.
        heard: What salloc says of it; None when it is somebody else's.
    """

    job_id: str
    environment: dict[str, str]
    heard: SallocHeard | None = None


class AllocationRequest(msgspec.Struct, frozen=True):
    """What salloc is asked for.

    Attributes:
        options: Its options.
        directory: Where it is started, and the job with it.
        because: Which of them come from the engine's flags and config.json, for people; or "".
        deadline: Seconds that giving the job back may take.
    """

    options: Sequence[str]
    directory: str
    because: str
    deadline: float


class _Allocation:
    """What happens between salloc and us."""

    def __init__(self, tools: Tools, request: JobRequest) -> None:
        self.heard = SallocHeard()
        self.known = trio.Event()
        self._changed = trio.Event()
        self._seen = ("", False, False, False)
        self._in_vain: Waiting | None = None
        self._tools = tools
        self._request = request
        self._child_env = tools.child_env(request.child_env)

    def hear(self, line: str) -> None:
        heard = self.heard
        heard.hear(line)
        self._request.journal.write("debug" if is_chatter(line) else "info", line)
        self._look()

    def _look(self) -> None:
        """Write down which job it is, as soon as that is said, and each time it is said better."""
        heard = self.heard
        seen = (heard.job_id, heard.granted, heard.revoked, heard.suspended)
        if seen == self._seen:
            return
        if heard.job_id != self._seen[0]:
            self._request.known(heard.job_id, True)
            self.known.set()
        if heard.suspended is not self._seen[3]:
            self._request.suspended(heard.suspended)
        self._seen = seen
        self._changed.set()
        self._changed = trio.Event()

    async def _revoked(self) -> None:
        """Wait until the job is taken away."""
        while not self.heard.revoked:
            await self._changed.wait()

    def granted(self, environment: dict[str, str]) -> Held:
        """Take over the job that there is now."""
        self.heard.is_job(environment["SLURM_JOB_ID"])
        self._look()
        return Held(self.heard.job_id, environment, self.heard)

    async def watch(self, salloc: Child) -> None:
        """Tell when the job is lost. Whoever releases it ends this first."""
        async with _until_the_end_of(salloc):
            await self._revoked()
            await trio.sleep(_LAST_WORDS)  # the cause may stand in the next line
        if self.heard.revoked:
            ending = self.heard.ending
            if ending.reason == "cancelled":
                ending = await ask_fate(self._tools, self._child_env, self.heard.job_id) or ending
            self._request.lost(ending)
        else:
            text = f"job {self.heard.job_id} is given up: salloc ended unexpectedly"
            self._request.lost(taken("scrun-failure", text))

    async def mind_pending(self, queue: Queue, because: str, scope: trio.CancelScope) -> None:
        """Tell what the job waits for, and have it cancelled when the supervisor dies.

        Args:
            queue: Who knows.
            because: What the caller has asked for, for people.
            scope: The waiting, cancelled when that is in vain.
        """

        async def watch(job_id: str) -> None:
            self._in_vain = await queue.watch(self._request, self._child_env, job_id, because)
            scope.cancel()

        while True:
            changed, heard = self._changed, self.heard
            async with unwrapped() as nursery:
                if heard.job_id:
                    nursery.start_soon(watch, heard.job_id)
                    if not heard.granted:
                        nursery.start_soon(self._end_with_us, heard.job_id)
                await changed.wait()
                nursery.cancel_scope.cancel()

    async def _end_with_us(self, job_id: str) -> None:
        ours, theirs = socket.socketpair()
        words = ["/bin/sh", "-c", _CANCELLER, "sh", self._tools.scancel, job_id]
        with ours, theirs:
            async with child(words, self._child_env, stdin=theirs.fileno(), dies_with_us=False):
                theirs.close()
                await trio.sleep_forever()

    async def lose_patience(self, scope: trio.CancelScope) -> None:
        """Cancel the waiting for a job that is gone: salloc may not end by itself then."""
        await self._revoked()
        await trio.sleep(_FIRST_WORDS)
        scope.cancel()

    async def give_up(self, salloc: Child, line: trio.socket.SocketType) -> bool:
        """Give up a job that was not there yet; perhaps it is, at this moment.

        Returns:
            Whether Slurm knows that it ended, so that salloc has nothing to do any more.
        """
        heard = self.heard
        with trio.move_on_after(_FIRST_WORDS, shield=True):
            async with _until_the_end_of(salloc):  # a refusal closes the line a moment before it
                await self.known.wait()
                if heard.granted:
                    # Its shell is a moment away. A salloc whose job is cancelled just before (one
                    # in 300 lives that were given up while they were created) hangs, see above.
                    await _holder(line)
                    return False
        if not salloc.ended and not heard.gone:
            with trio.CancelScope(shield=True):
                return await self._end_job(salloc)
        return heard.gone

    async def _end_job(self, salloc: Child) -> bool:
        """Cancel a job that salloc has no shell for yet; return whether that is done."""
        if self.heard.job_id:
            try:
                await cancel_job(self._tools, self._child_env, self.heard.job_id)
            except Exception as error:
                if not may_pass(error):
                    raise
                # then salloc is stuck as well, and has to be ended first
            else:
                return True
        salloc.signal(SIGTERM)  # no id: slurmctld does not answer, and there is no job yet
        return False

    async def make_sure(self, salloc: Child, began: float) -> None:
        """Cancel what salloc may have left behind; it has ended.

        Args:
            salloc: It.
            began: When it was started.
        """
        heard = self.heard
        doubtful = [heard.job_id] if heard.job_id and not heard.gone else []
        if not heard.job_id and await salloc.wait() < 0:
            doubtful = await jobs_of_a_killed_salloc(
                self._tools, self._child_env, salloc.pid, began
            )
        for job_id in doubtful:
            await cancel_in_the_end(self._tools, self._child_env, self._request.journal, job_id)

    async def reason(self, because: str) -> tuple[str, str]:
        """Say why there is no job, in Slurm's words, and what the caller has asked for.

        Args:
            because: What the caller has asked for.

        Returns:
            That, and the word for it of a container that was created before.
        """
        heard = self.heard
        if self._in_vain is not None:
            return in_vain_line(heard.job_id, self._in_vain, because), "scrun-failure"
        if heard.withdrawn:
            fate = await ask_fate(self._tools, self._child_env, heard.job_id)
            if fate is None:
                return heard.reason, heard.ending.reason
            return f"{fate.text}, while it waited for resources", fate.reason
        return (f"{heard.reason} ({because})" if because else heard.reason), "scrun-failure"


@asynccontextmanager
async def allocated(
    tools: Tools, queue: Queue, request: JobRequest, wish: AllocationRequest
) -> AsyncIterator[Held]:
    """Hold a job.

    Args:
        tools: Slurm's tools.
        queue: What is known of the jobs that wait.
        request: Who asks, and who is told what.
        wish: What is asked for.

    Raises:
        AllocationRefused: There is none; with Slurm's reason.
    """
    allocation = _Allocation(tools, request)
    ours, theirs = socket.socketpair()
    command = ["/bin/sh", "-c", _THERE, wish.directory, tools.salloc]
    # with -v it tells that the job is suspended
    command += ["-v", *wish.options, "--", "/bin/sh", "-c", _HOLDER]
    line = trio.socket.from_stdlib_socket(ours)
    environment: dict[str, str] | None = None
    began = time.time()
    salloc: Child | None = None
    try:
        with line, theirs:
            async with (
                messages(allocation.hear) as stderr,
                child(
                    command,
                    lean(tools.child_env(request.child_env)),
                    stdin=theirs.fileno(),
                    stderr=stderr,
                    dies_with_us=False,
                ) as salloc,
            ):
                theirs.close()
                try:
                    async with unwrapped() as pending:
                        waiting = pending.cancel_scope
                        pending.start_soon(allocation.mind_pending, queue, wish.because, waiting)
                        pending.start_soon(allocation.lose_patience, waiting)
                        environment = _environment(await _holder(line))
                        pending.cancel_scope.cancel()
                    if environment is not None:
                        held = allocation.granted(environment)
                        async with unwrapped() as watching:
                            watching.start_soon(allocation.watch, salloc)
                            try:
                                yield held
                            finally:
                                watching.cancel_scope.cancel()
                finally:
                    gone = False
                    if environment is None:
                        gone = await allocation.give_up(salloc, line)
                    else:
                        _tell(line, request.ending())
                    line.close()  # the holder ends, and salloc gives the job back
                    with trio.move_on_after(_LAST_BREATH if gone else wish.deadline, shield=True):
                        await salloc.wait()
    finally:
        if salloc is not None:
            with trio.CancelScope(shield=True):
                await allocation.make_sure(salloc, began)
    if environment is None:
        reason, kind = await allocation.reason(wish.because)
        raise AllocationRefused(f"no job for container {request.container}: {reason}", kind)


@asynccontextmanager
async def _until_the_end_of(salloc: Child) -> AsyncIterator[None]:
    """Cancel what waits in the block when salloc ends."""
    async with unwrapped() as nursery:

        @nursery.start_soon
        async def end() -> None:
            await salloc.wait()
            nursery.cancel_scope.cancel()

        yield
        nursery.cancel_scope.cancel()


def _tell(line: trio.socket.SocketType, ending: Ending | None) -> None:
    """Tell the holder what to end with."""
    status = _NOT_KNOWN if ending is None else ending.status
    with contextlib.suppress(OSError):  # it may have ended with the job
        # a few bytes into an empty socket: this does not block
        os.write(line.fileno(), b"%d\n" % status)


async def _holder(line: trio.socket.SocketType) -> str:
    """Wait until the job is there.

    Returns:
        The pid of the process that salloc runs, or "" when salloc ended before it ran one.
    """
    received = b""
    while not received.endswith(b"\n"):
        part = await line.recv(32)
        if not part:
            return ""
        received += part
    return received.decode().strip()


def _environment(pid: str) -> dict[str, str] | None:
    """Read the variables that salloc gave the process it runs; None when it is gone already."""
    try:
        content = Path("/proc", pid or "0", "environ").read_bytes()
    except OSError:
        return None
    pairs = (os.fsdecode(entry).partition("=") for entry in content.split(b"\0") if entry)
    found = {name: value for name, _, value in pairs if name.startswith("SLURM_")}
    return found if "SLURM_JOB_ID" in found else None
