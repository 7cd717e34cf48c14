"""A container that srun launches, which can outlive its supervisor."""

from collections.abc import Sequence

import msgspec

from scrun.supervisor.contracts.engine import Step
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.engines.deferred_container import hold_step
from scrun.supervisor.engines.slurm.job import SlurmJob


class SrunJob(SlurmJob):
    """See `supervisor.contracts.adoption.KeepsStep`.

    Attributes:
        spool_mount: Where slurmstepd mounts something in the container (`spool.spool_mount`).
    """

    spool_mount = ""

    @property
    def mount_points(self) -> Sequence[str]:
        """See `supervisor.contracts.node.OnNodes`."""
        return [self.spool_mount] if self.spool_mount else []

    def keep(self, step: Step) -> None:
        """Keep what the step needs: before the start its streams, and srun's after that."""
        deposit, request = self._request.deposit, self._request
        if self._streams_of(step).listen and not step.terminal:
            deposit.give_up("its standard error is searched for the runtime's message")
        deposit.needs(request.job_deposit)
        hold_step(deposit, step)
        layout = msgspec.to_builtins(self._layout)
        deposit.note(target=request.container, options=self._options, layout=layout)

    @property
    def _step_deposit(self) -> Deposit | None:
        deposit = self._request.deposit
        return deposit if deposit.is_kept else None
