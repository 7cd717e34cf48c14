"""The shim of a job that waits for its next container, held by the task that holds the job."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from scrun.core.errors import EngineError
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.core.mounts import OURS
from scrun.supervisor.engines.slurm.job_shim import JobShim
from scrun.supervisor.log.journal import Journal


class WarmShim:
    """The one shim of a job that has one container at a time.

    To start it takes most of a short container's time, so it waits together with its job.
    """

    def __init__(self, nursery: trio.Nursery, journal: Journal, deposit: Deposit) -> None:
        """`journal`: leads to the messages of the container that uses the job."""
        self._nursery = nursery
        self._journal = journal
        self._deposit = deposit
        self._shim: JobShim | None = None
        self._scope = trio.CancelScope()
        self._gone = trio.Event()

    @asynccontextmanager
    async def opened(self, shim: JobShim) -> AsyncIterator[JobShim]:
        """Provide the job's shim for a container, while the block runs.

        Args:
            shim: The one that the container would have; it is begun if the job has none like it.

        Raises:
            EngineError: The job is being released.
        """
        if self._shim is None or not self._shim.serves_as(shim):
            await self._end()
            await self._begin(shim)
        assert self._shim is not None
        try:
            yield self._shim
        finally:
            if not self._shim.is_of_use:  # the job's deposit lets go of it, too
                with trio.CancelScope(shield=True):
                    await self._end()

    async def _begin(self, shim: JobShim) -> None:
        begun = trio.Event()
        shim.journal, shim.deposit, shim.is_kept = self._journal, self._deposit, True
        self._scope, self._gone = trio.CancelScope(), trio.Event()
        self._nursery.start_soon(self._hold, shim, begun, self._scope, self._gone)
        await begun.wait()
        if self._gone.is_set():
            raise EngineError("the job is being released")
        self._shim = shim

    async def _hold(
        self, shim: JobShim, begun: trio.Event, scope: trio.CancelScope, gone: trio.Event
    ) -> None:
        try:
            with scope, OURS.seen():
                async with shim.opened():
                    await trio.lowlevel.checkpoint_if_cancelled()
                    begun.set()
                    await trio.sleep_forever()
        finally:
            gone.set()
            begun.set()

    async def _end(self) -> None:
        if self._shim is not None:
            self._shim = None
            self._scope.cancel()
            await self._gone.wait()
            self._deposit.note(hello=None)
