"""A job that serves several containers, as one of them sees it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec

from scrun.model.states import Ending
from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.engines.slurm.allocation import Allocation
from scrun.supervisor.engines.slurm.borrowed_job import LOAN, HoldAgain, lent
from scrun.supervisor.engines.slurm.job import SlurmJob
from scrun.supervisor.engines.slurm.job_shim import JobShim
from scrun.supervisor.engines.slurm.needs import Needs
from scrun.supervisor.engines.slurm.tools import Tools, of_a_container
from scrun.supervisor.engines.slurm.warm_shim import WarmShim


class JobLease:
    """A job, for one container.

    Attributes:
        held: The job.
        use: What the container does in it, once that is known.
    """

    def __init__(self, held: Allocation, shims: WarmShim | None = None) -> None:
        """`shims`: what keeps its shim, if that outlives the container."""
        self.held = held
        self.use: SlurmJob | None = None
        self._shims = shims

    def opened(self, shim: JobShim) -> AbstractAsyncContextManager[JobShim]:
        """Provide a shim while the block runs: this one, or one that the job has already."""
        return shim.opened() if self._shims is None else self._shims.opened(shim)

    def is_clean(self, request: JobRequest) -> bool:
        """Tell whether the next container may have it."""
        return self.use is not None and self.use.sound and request.reusable()


class JobLeaseRequest(msgspec.Struct, frozen=True):
    """What one supervisor asks of another: a job of the same cluster."""

    tools: Tools
    needs: Needs


@asynccontextmanager
async def borrowed_job(
    request: JobRequest, tools: Tools, needs: Needs, hold: HoldAgain
) -> AsyncIterator[JobLease | None]:
    """Hold a job that another supervisor keeps; None if there is none."""
    loan_request = msgspec.json.encode(JobLeaseRequest(tools, needs))
    async with (request.borrow or _no_others)(loan_request, request.on_lost) as borrowed:
        if borrowed is None:
            yield None
            return
        lender = borrowed.lender
        assert lender is not None
        tell(request, borrowed.job_id)
        held = with_own(Allocation(borrowed.job_id, dict(borrowed.environment)), request)
        facts = {**borrowed.facts, "job": held.job_id, "environment": held.environment}
        request.job_deposit.hold({**borrowed.fds, LOAN: lender.sock.fileno()}, **facts)
        async with lent(request, Inheritance("", facts, borrowed.fds), lender, hold) as held:
            loan = JobLease(held)
            try:
                yield loan
            finally:
                borrowed.clean = loan.is_clean(request)


@asynccontextmanager
async def _no_others(_: bytes, __: Callable[[Ending], None]) -> AsyncIterator[None]:
    yield None


def tell(request: JobRequest, job_id: str) -> None:
    """Log that a job is not a new one."""
    request.journal.write("info", f"it reuses job {job_id}, which was waiting for a container")


def with_own(held: Allocation, request: JobRequest) -> Allocation:
    """Return a job with the variables that belong to one container."""
    theirs = {"SLURM_SUBMIT_DIR": request.directory, "SLURM_CONTAINER_ID": request.container}
    own = {name: theirs[name] for name in of_a_container(held.environment)}
    return msgspec.structs.replace(held, environment={**held.environment, **own})
