"""A job that another supervisor has lent us.

That one holds it, and talks with its salloc. We have what holds it as well: when the lender dies,
we hold the job alone, and release it in the end. Our successor does the same.
"""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.contracts.reuse import Borrowed
from scrun.supervisor.core.deposits import JOB
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.lender import Lender
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.engines.slurm.allocation import Allocation, with_own
from scrun.supervisor.engines.slurm.job_state import JobState

_Hold = Callable[[JobRequest, Inheritance], AbstractAsyncContextManager[Allocation]]
"""Holds a job by what another supervisor has left for it."""

LOAN = f"{JOB}loan"
"""The name of the connection to the lender in a deposit."""


def is_lent(found: Inheritance) -> bool:
    """Tell whether the one that has died had borrowed a job."""
    return LOAN in found.fds


@asynccontextmanager
async def lent(
    request: JobRequest, found: Inheritance, lender: Lender, hold: _Hold
) -> AsyncIterator[Allocation]:
    """Hold a job that is lent to us.

    Args:
        found: What holds the job; the descriptors that nobody has taken stay the caller's.
        lender: The connection to the lender; somebody watches it.
    """
    facts, over, state = found.facts, trio.Event(), JobState()
    state.is_job(facts["job"])  # all that salloc has said to us
    request.on_job_id(facts["job"], False)
    async with unwrapped() as nursery:

        @nursery.start_soon
        async def hold_alone() -> None:
            await lender.gone.wait()
            with trio.CancelScope(shield=True):
                async with hold(request, found):
                    await over.wait()

        try:
            yield Allocation(facts["job"], facts["environment"], state)
        finally:
            over.set()
            request.job_deposit.drop(JOB)
            if not lender.gone.is_set():
                nursery.cancel_scope.cancel()


@asynccontextmanager
async def borrowed_job(
    request: JobRequest, borrowed: Borrowed, hold: _Hold
) -> AsyncIterator[Allocation]:
    """Hold a job that another supervisor keeps."""
    lender = borrowed.lender
    assert lender is not None
    held = with_own(Allocation(borrowed.job_id, dict(borrowed.environment)), request)
    facts = {**borrowed.facts, "job": held.job_id, "environment": held.environment}
    request.job_deposit.hold({**borrowed.fds, LOAN: lender.sock.fileno()}, **facts)
    async with lent(request, Inheritance("", facts, borrowed.fds), lender, hold) as held:
        yield held


@asynccontextmanager
async def lent_again(
    request: JobRequest, found: Inheritance, hold: _Hold
) -> AsyncIterator[Allocation]:
    """Hold a job that was lent to a supervisor that has died; Slurm gets it back afterwards."""
    lender = Lender(socket.socket(fileno=found.take(LOAN)))
    try:
        async with unwrapped() as nursery:
            nursery.start_soon(lender.watch, request.on_lost)
            async with lent(request, found, lender, hold) as held:
                yield held
            nursery.cancel_scope.cancel()
    finally:
        lender.close()
