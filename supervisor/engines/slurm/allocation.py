"""A job that is held by salloc, for as long as a block lasts.

salloc runs a shell that blocks on a socket of ours: when the supervisor lets go of it, or dies,
the shell reads end of file, ends, and salloc gives the job back. While the job is pending there
is no such shell yet; then another one waits in the same way, and cancels the job by its id.

Nothing signals salloc. It talks to slurmctld from within its signal handler: one that arrives
while salloc is busy, as around a grant or when the shell has just ended, leaves one in ten of
them (22.05) waiting for ever, with the job held. So salloc gets no parent-death signal either.

salloc says what happens to the job, as it happens. Only what a pending one waits for has to be
asked (`pending.py`).
"""

import os
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGTERM

import msgspec
import trio

from scrun.errors import AllocationRefused, EngineError
from scrun.states import taken
from supervisor.engines.base import Request
from supervisor.engines.slurm.cancel import cancel_job
from supervisor.engines.slurm.fate import ask_fate
from supervisor.engines.slurm.messages import SallocHeard
from supervisor.engines.slurm.pending import Queue
from supervisor.engines.slurm.tools import Tools, lean
from supervisor.engines.slurm.unknown import jobs_of_a_killed_salloc
from supervisor.nurseries import unwrapped
from supervisor.processes import Child, Setting, child
from supervisor.pumps import messages

# The socket is its standard input: dash can name one-digit descriptors only, and salloc itself
# keeps whatever else it inherits.
_HOLDER = "echo $$ >&0; read -r _ 2>/dev/null"
_CANCELLER = 'read -r _; exec "$@"'
_LAST_WORDS = 0.1
_FIRST_WORDS = 5.0
_LAST_BREATH = 3.0
_FIRST_PAUSE, _LAST_PAUSE = 1.0, 60.0


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


class Wish(msgspec.Struct, frozen=True):
    """What salloc is asked for.

    Attributes:
        options: Its options.
        because: Which of them come from the engine's flags, for people; or "".
        deadline: Seconds that giving the job back may take.
    """

    options: Sequence[str]
    because: str
    deadline: float


class _Allocation:
    """What happens between salloc and us."""

    def __init__(self, request: Request) -> None:
        self.heard = SallocHeard()
        self.known = trio.Event()
        self._revoked = trio.Event()
        self._request = request

    def hear(self, line: str) -> None:
        self.heard.hear(line)
        self._request.journal.write("info", line)
        if self.heard.job_id and not self.known.is_set():
            self.known.set()
            self._request.known(self.heard.job_id, True)
        if self.heard.revoked:
            self._revoked.set()

    async def watch(self, salloc: Child, tools: Tools) -> None:
        """Tell when the job is lost. Whoever releases it ends this first."""
        async with _until_the_end_of(salloc):
            await self._revoked.wait()
            await trio.sleep(_LAST_WORDS)  # the cause may stand in the next line
        if self.heard.revoked:
            ending = self.heard.ending
            if ending.reason == "cancelled":
                setting = tools.setting(self._request.setting)
                ending = await ask_fate(tools, setting, self.heard.job_id) or ending
            self._request.lost(ending)
        else:
            text = f"job {self.heard.job_id} is given up: salloc ended unexpectedly"
            self._request.lost(taken("scrun-failure", text))

    async def guard_pending(self, tools: Tools, setting: Setting) -> None:
        """See to it that a pending job is cancelled when the supervisor dies."""
        await self.known.wait()
        if self.heard.granted:
            return
        ours, theirs = socket.socketpair()
        words = ["/bin/sh", "-c", _CANCELLER, "sh", tools.scancel, self.heard.job_id]
        with ours, theirs:
            async with child(words, setting, stdin=theirs.fileno(), dies_with_us=False):
                theirs.close()
                await trio.sleep_forever()

    async def lose_patience(self, scope: trio.CancelScope) -> None:
        """Cancel the waiting for a job that is gone: salloc may not end by itself then."""
        await self._revoked.wait()
        await trio.sleep(_FIRST_WORDS)
        scope.cancel()

    async def tell_pending(self, queue: Queue, setting: Setting, because: str) -> None:
        """Tell what the job waits for."""
        await self.known.wait()
        await queue.watch(self._request, setting, self.heard.job_id, because)


@asynccontextmanager
async def hold(tools: Tools, queue: Queue, request: Request, wish: Wish) -> AsyncIterator[Held]:
    """Hold a job.

    Args:
        tools: Slurm's tools.
        queue: What is known of the jobs that wait.
        request: Who asks, and who is told what.
        wish: What is asked for.

    Raises:
        AllocationRefused: There is none; with Slurm's reason.
    """
    setting = tools.setting(request.setting)
    allocation = _Allocation(request)
    heard = allocation.heard
    ours, theirs = socket.socketpair()
    command = [tools.salloc, *wish.options, "--", "/bin/sh", "-c", _HOLDER]
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
                    lean(setting),
                    stdin=theirs.fileno(),
                    stderr=stderr,
                    dies_with_us=False,
                ) as salloc,
            ):
                theirs.close()
                try:
                    async with unwrapped() as pending:
                        pending.start_soon(allocation.guard_pending, tools, setting)
                        pending.start_soon(allocation.tell_pending, queue, setting, wish.because)
                        pending.start_soon(allocation.lose_patience, pending.cancel_scope)
                        environment = _environment(await _holder(line))
                        pending.cancel_scope.cancel()
                    if environment is not None:
                        held = Held(environment["SLURM_JOB_ID"], environment, heard)
                        request.known(held.job_id, True)
                        async with unwrapped() as watching:
                            watching.start_soon(allocation.watch, salloc, tools)
                            try:
                                yield held
                            finally:
                                watching.cancel_scope.cancel()
                finally:
                    gone = False
                    if environment is None:
                        gone = await _give_up(tools, setting, allocation, salloc, line)
                    line.close()  # the holder ends, and salloc gives the job back
                    with trio.move_on_after(_LAST_BREATH if gone else wish.deadline, shield=True):
                        await salloc.wait()
    finally:
        with trio.CancelScope(shield=True):
            doubtful = [heard.job_id] if heard.job_id and not heard.gone else []
            if salloc is not None and not heard.job_id and await salloc.wait() < 0:
                doubtful = await jobs_of_a_killed_salloc(tools, setting, salloc.pid, began)
            for job_id in doubtful:
                await _cancel_in_the_end(tools, request, job_id)
    if environment is None:
        reason = heard.reason
        kind = heard.ending.reason if heard.revoked else "scrun-failure"
        if heard.revoked and (fate := await ask_fate(tools, setting, heard.job_id)):
            reason, kind = f"{fate.text}, while it waited for resources", fate.reason
        elif wish.because:
            reason += f" ({wish.because})"
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


async def _cancel_in_the_end(tools: Tools, request: Request, job_id: str) -> None:
    """Cancel a job that salloc could not give back, however long Slurm does not answer."""
    pause = _FIRST_PAUSE
    while True:
        try:
            return await cancel_job(tools, tools.setting(request.setting), job_id)
        except EngineError as error:
            request.journal.write("error", f"{error}; the next try is in {pause:g} s")
            await trio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)


async def _give_up(
    tools: Tools,
    setting: Setting,
    allocation: _Allocation,
    salloc: Child,
    line: trio.socket.SocketType,
) -> bool:
    """Give up a job that was not there yet; perhaps it is, at this moment.

    Returns:
        Whether Slurm knows that it ended, so that salloc has nothing to do any more.
    """
    heard = allocation.heard
    with trio.CancelScope(shield=True):
        with trio.move_on_after(_FIRST_WORDS):
            async with _until_the_end_of(salloc):  # a refusal closes the line a moment before it
                await allocation.known.wait()
                if heard.granted:
                    # Its shell is a moment away. A salloc whose job is cancelled just before (one
                    # in 300 lives that were given up while they were created) hangs, see above.
                    await _holder(line)
                    return False
        if not salloc.ended and not heard.gone:
            return await _end_job(tools, setting, heard.job_id, salloc)
    return heard.gone


async def _end_job(tools: Tools, setting: Setting, job_id: str, salloc: Child) -> bool:
    """Cancel a job that salloc has no shell for yet; return whether that is done."""
    if job_id:
        try:
            await cancel_job(tools, setting, job_id)
        except EngineError:
            pass  # then salloc is stuck as well, and has to be ended first
        else:
            return True
    salloc.signal(SIGTERM)  # no id: slurmctld does not answer, and there is no job yet
    return False


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
