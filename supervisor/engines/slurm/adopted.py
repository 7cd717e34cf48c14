"""A job and its shim that another supervisor has held, which has died."""

import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec
import trio

from scrun.core.errors import EngineError
from scrun.supervisor.children.pumps import received
from scrun.supervisor.children.strangers import stranger
from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.core.deposits import JOB, Found
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.engines.slurm.allocation import (
    LAST_BREATH,
    Allocation,
    Held,
    send_status,
)
from scrun.supervisor.engines.slurm.job_shim import JobShim
from scrun.supervisor.engines.slurm.shim_job import ShimJob
from scrun.supervisor.engines.slurm.shim_process import ShimProcess
from scrun.supervisor.engines.slurm.shim_step import ShimStep
from scrun.supervisor.engines.slurm.step import SrunStep
from scrun.supervisor.engines.slurm.tools import Tools
from scrun.supervisor.nodes.connection import Hello, Shim, ShimError, ShimLost
from scrun.supervisor.nodes.lasting import STREAMS, ResumedEnds
from scrun.supervisor.nodes.listening import NotReached
from scrun.supervisor.nodes.resumed import ResumedShim, reconnected

_ATTEMPTS = 3
_PAUSE = 1.0


@asynccontextmanager
async def taken_over(
    tools: Tools, request: JobRequest, found: Found, deadline: float
) -> AsyncIterator[Held]:
    """Hold a job that another supervisor has held, which has died.

    Args:
        tools: Slurm's tools.
        request: The request, with callbacks for progress.
        found: What the other has left.
        deadline: Seconds that releasing the job may take.
    """
    allocation = Allocation(tools, request)
    allocation.state.is_job(found.facts["job"])
    line = socket.socket(fileno=found.take(f"{JOB}line"))
    pid, pidfd = found.facts["salloc"], found.take(f"{JOB}salloc")
    try:
        async with (
            received(found.take(f"{JOB}salloc_said"), allocation.feed),
            stranger(pid, pidfd, "salloc", grace=LAST_BREATH) as salloc,
        ):
            try:
                async with unwrapped() as watching:
                    watching.start_soon(allocation.watch, salloc)
                    try:
                        yield allocation.granted(found.facts["environment"])
                    finally:
                        watching.cancel_scope.cancel()
            finally:
                request.deposit.drop(JOB)
                send_status(line, request.ending())
                line.close()
                with trio.move_on_after(deadline, shield=True):
                    await salloc.wait()
    finally:
        line.close()
        with trio.CancelScope(shield=True):
            await allocation.cancel_leftovers(salloc, found.facts["salloc_began"])


class AdoptedShim(JobShim):
    """A job's shim that another supervisor has started."""

    found: Found

    def _new_step(self, srun: SrunStep) -> ShimStep:
        step = AdoptedStep(srun, self.journal, self._direct, self._confs, "", self._deposit)
        step.found = self.found
        return step


class AdoptedStep(ShimStep):
    """Its step."""

    found: Found

    async def run(self, options: Sequence[str], variables: Mapping[str, str]) -> None:
        """Wait until the step ends or is to be left."""
        found, ended = self.found, trio.Event()
        to_srun, from_srun = found.take(f"{JOB}to_srun"), found.take(f"{JOB}from_srun")
        try:
            async with (
                received(found.take(f"{JOB}words"), self._take_words),
                unwrapped() as nursery,
            ):
                nursery.start_soon(self._connect, to_srun, from_srun, ended)
                try:
                    with self._scope:
                        self._status = await self.step.run_on(found)
                finally:
                    ended.set()
        finally:
            self._obeyed = self._leaving.is_set()
            self._over.set()
            self._known.set()

    def _connected(self, to_srun: int, from_srun: int) -> AbstractAsyncContextManager[ResumedShim]:
        return reconnected(to_srun, from_srun, self._journal)

    async def _get_ready(self, shim: Shim) -> None:
        self.hello = msgspec.convert(self.found.facts["hello"], Hello)
        self._shim = shim

    @property
    def ports(self) -> str | None:
        """The range of our ports, see `Direct`."""
        return self._direct.ports


class ResumedShimProcess(ShimProcess):
    """The first process of a container that another supervisor has made."""

    is_started = False


class AdoptedShimJob(ShimJob):
    """A job in which another supervisor has made the container."""

    found: Found

    @asynccontextmanager
    async def resumed(self) -> AsyncIterator[ResumedShimProcess]:
        """See `supervisor.contracts.engine.AdoptedJob`.

        Raises:
            EngineError: There is no shim.
        """
        request, facts = self._request, self.found.facts
        step = self._shim_step
        shim = await step.shim()
        assert isinstance(shim, ResumedShim)
        assert isinstance(step, AdoptedStep)
        self._place.id = facts["target"]
        request.deposit.note(
            **{name: facts[name] for name in ("target", "streams", "step", "hello")}
        )
        left = self.found.fds
        ends = ResumedEnds(
            {name: left.pop(name) for name in [*left] if name.startswith(STREAMS)},
            request.deposit,
        )
        numbers = facts["streams"]
        fields = {name: numbers[name] for name in ends.written}
        if ends.has_input and "stdin" in numbers:
            fields["stdin"] = numbers["stdin"]
        async with unwrapped() as nursery:
            streams = shim.resumed_streams(fields, self._child_env, request.journal, ends)
            async with streams:
                first = ResumedShimProcess(
                    lambda: self._begin(shim),
                    lambda first: self.how_it_ended(first, shim, streams),
                )
                written = {fields[name]: count for name, count in ends.written.items()}
                first.is_started = await self._reconnect(shim, step, written)
                if first.is_started:
                    first.begun.set()
                self._first = first
                async with self._watched(first, shim, nursery):
                    yield first

    async def _reconnect(
        self, shim: ResumedShim, step: AdoptedStep, written: Mapping[int, int]
    ) -> bool:
        """Connect to the shim; return whether the container was started.

        A shim that has gone has had a container, whose end is told as always.

        Raises:
            EngineError: The shim cannot connect to us.
        """
        assert step.hello is not None
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await shim.resume(step.hello, self._place.id, written, step.ports)
            except ShimLost:
                break
            except (ShimError, NotReached, OSError) as error:
                if attempt == _ATTEMPTS:
                    raise EngineError(f"the shim cannot be reached again: {error}") from error
                await trio.sleep(_PAUSE)
        return True
