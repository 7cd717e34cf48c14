"""A container that another supervisor had yet to make, which has died.

Its `create` has been answered, and its job is pending, or it was being staged. salloc has waited
all the time. What was staged is undone and done again: nobody has seen it.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from scrun.model.states import Phase
from scrun.model.waiting import waiting_of
from scrun.oci import lookup
from scrun.oci.config import Bundle
from scrun.supervisor.containers.inherited import InheritedContainer
from scrun.supervisor.containers.ledger import NODES, Ledger
from scrun.supervisor.containers.pods import Pods
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.contracts.engine import Engine, Job
from scrun.supervisor.contracts.stager import Leftover
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.plugins.choose_stager import Stagers
from scrun.supervisor.scripts.spank.stack import Stack


class UnfinishedContainer(InheritedContainer):
    """See the module."""

    def __init__(
        self,
        create_request: CreateRequest,
        bundle: Bundle,
        engine: Engine,
        stagers: Stagers,
        ledger: Ledger,
        pods: Pods,
        found: Inheritance,
        left: Sequence[tuple[Inheritance, Deposit]],
    ) -> None:
        """See `InheritedContainer`."""
        super().__init__(create_request, bundle, engine, stagers, ledger, pods, found, left)
        if self.phase is Phase.STARTING:  # nothing had been started
            self.phase = Phase.WAITING
        started = self.phase is Phase.WAITING
        if started:
            self._creation.start_requested.set()
            self._may_run.set()
        if (program := found.facts["program"]) is not None:
            self._program = msgspec.convert(program, lookup.Found)
        record = ledger.record
        self._notices.queued(record.job_id)
        waiting = waiting_of(record.annotations)
        self._notices.go_on(waiting, started=started, granted=NODES in record.annotations)
        self.there.set()  # it takes signals, and can be started and deleted

    async def _answer_create(self) -> None:
        if self.phase is Phase.CREATED:
            await self._creation.wait_for_start()

    async def _read_bundle(self) -> Bundle:
        """See `Lifecycle`; the other has read and checked it."""
        self._take_captured_over()
        return self._submitted

    async def _run_in_job(self) -> None:
        self._journal.write("info", "its supervisor has died, and this one goes on")
        await self._undo_staging()
        await super()._run_in_job()

    async def _undo_staging(self) -> None:
        """Undo what was staged.

        Raises:
            ScrunError: It cannot be undone.
        """
        ledger, request = self._ledger, self._create_request
        if ledger.record.staged or ledger.record.moved:
            self._journal.write("info", "its bundle is staged once more")
            await self._stagers.undo(
                Leftover(ledger.record, self._directory, request.settings, request.child_env)
            )
            ledger.note(moved=None, staged="", stager="")

    @asynccontextmanager
    async def _allocated(self, stack: Stack, bundle: Bundle) -> AsyncIterator[Job]:
        parts = (self._engine, stack.request, bundle.config, self._found, self.pid)
        async with self._pods.allocated_again(*parts) as job:
            if self._notices.pending:  # it has got its job while nobody looked
                self._job_waits(None)
            yield job
