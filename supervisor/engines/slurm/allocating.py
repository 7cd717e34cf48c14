"""Holds a job, by a salloc of ours or by that of a supervisor that has died."""

import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, nullcontext

import trio

from scrun.core.errors import AllocationRefused
from scrun.supervisor.children.foreign import foreign_process
from scrun.supervisor.children.processes import Child, child
from scrun.supervisor.children.pumps import messages, received
from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.core.deposits import JOB, STEP
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.engines.slurm.allocation import (
    LAST_BREATH,
    Allocation,
    AllocationRequest,
    SallocConversation,
)
from scrun.supervisor.engines.slurm.pending import Queue
from scrun.supervisor.engines.slurm.tools import Tools, lean

# The socket is its standard input: dash can name one-digit descriptors only, and salloc keeps
# open whatever else it inherits.
KEEPALIVE = 'echo $$ >&0; read -r status 2>/dev/null; exit "${status:-1}"'
# salloc's own directory becomes WorkDir and SLURM_SUBMIT_DIR of the job. It is a user's directory
# and may hang, so a separate process enters it. salloc reports errors, for its --chdir.
_IN_DIRECTORY = 'cd -- "$0" 2>/dev/null; exec "$@"'
_STEP_ENDS = 10.0
_SAYS = (f"{STEP}from_srun", f"{STEP}words", f"{STEP}said.")
_LINE, _SALLOC, _SAID = f"{JOB}line", f"{JOB}salloc", f"{JOB}salloc_said"


@asynccontextmanager
async def allocated(
    tools: Tools, queue: Queue, request: JobRequest, salloc_request: AllocationRequest
) -> AsyncIterator[Allocation]:
    """Allocate a job and hold it.

    Args:
        tools: Slurm's tools.
        queue: The reasons of pending jobs.
        request: The request, with callbacks for progress.
        salloc_request: What to ask salloc for.

    Raises:
        AllocationRefused: Slurm gave no job; with its reason.
    """
    allocation = SallocConversation(tools, request)
    ours, theirs = socket.socketpair()
    command = ["/bin/sh", "-c", _IN_DIRECTORY, salloc_request.directory, tools.salloc]
    # with -v it reports that the job is suspended
    command += ["-v", *salloc_request.options, "--", "/bin/sh", "-c", KEEPALIVE]
    line = trio.socket.from_stdlib_socket(ours)
    began = time.time()
    salloc: Child | None = None
    held: Allocation | None = None

    def hold(said: int) -> None:
        request.job_deposit.hold({_SAID: said})

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
                kept = {_LINE: line.fileno(), _SALLOC: salloc.pidfd}
                request.job_deposit.hold(kept, salloc=salloc.pid, salloc_began=began)
                async with allocation.held(salloc, line, queue, salloc_request) as held:
                    if held is not None:
                        yield held
    finally:
        if salloc is not None:
            with trio.CancelScope(shield=True):
                await allocation.cancel_leftovers(salloc, began)
    if held is None:
        raise await allocation.refusal(salloc_request.because)


def held_again(
    tools: Tools,
    queue: Queue,
    request: JobRequest,
    salloc_request: AllocationRequest,
    found: Inheritance,
) -> AbstractAsyncContextManager[Allocation]:
    """Have a job that another supervisor has had, which has died; the caller's own as it is.

    Args:
        tools: Slurm's tools.
        queue: The reasons of pending jobs.
        request: The request, with callbacks for progress.
        salloc_request: What the other has asked salloc for.
        found: What it has left for the job.

    Raises:
        AllocationRefused: As for `allocated`.
    """
    if is_own(found):
        return _taken_over(tools, queue, request, salloc_request, found)
    held = Allocation(found.facts["job"], found.facts["environment"])
    request.on_job_id(held.job_id, False)
    return nullcontext(held)


def is_own(found: Inheritance) -> bool:
    """Tell whether a job is one that we hold, and not the caller's own."""
    return _LINE in found.fds


@asynccontextmanager
async def _taken_over(
    tools: Tools,
    queue: Queue,
    request: JobRequest,
    salloc_request: AllocationRequest,
    found: Inheritance,
) -> AsyncIterator[Allocation]:
    """Hold a job, or wait for it, as another supervisor has done; see `held_again`."""
    allocation, facts = SallocConversation(tools, request), found.facts
    line = trio.socket.from_stdlib_socket(socket.socket(fileno=found.take(_LINE)))
    salloc: Child | None = None
    held: Allocation | None = None
    try:
        with line:
            async with (
                received(found.take(_SAID), allocation.feed),
                foreign_process(
                    facts["salloc"], found.take(_SALLOC), "salloc", grace=LAST_BREATH
                ) as salloc,
            ):
                allocation.go_on(found)
                environment = facts.get("environment")
                parts = (salloc, line, queue, salloc_request, environment)
                async with allocation.held(*parts) as held:
                    if held is not None:
                        yield held
    finally:
        if salloc is not None:
            with trio.CancelScope(shield=True):
                await allocation.cancel_leftovers(salloc, facts["salloc_began"])
    if held is None:
        raise await allocation.refusal(salloc_request.because)


@asynccontextmanager
async def held_anew(
    hold: AbstractAsyncContextManager[Allocation], request: JobRequest, found: Inheritance
) -> AsyncIterator[Allocation]:
    """Have a job in which another supervisor has made no container, without the step it began.

    Args:
        hold: Holds it, as `held_again`.
        request: The request.
        found: What the other has left for the job.

    Raises:
        AllocationRefused: As for `allocated`.
    """
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
