"""The plugin stage/none: bundles run as they are.

For bundles that were made for the nodes. Nothing is checked, changed or copied, so what
config.json asks for is the runtime's business: hooks, limits, mounts and all.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from scrun.core.errors import StagingError
from scrun.supervisor.contracts.engine import Job
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.contracts.stager import Leftover, Submission
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.staging.view import view_of

plugin_type = "stage/none"
plugin_name = "Bundles as they are"
plugin_version = "1.0.0"


class _Unstaged:
    """Leaves one bundle as it is (see `supervisor.contracts.stager.Stager`)."""

    def __init__(self, submission: Submission) -> None:
        self._bundle = submission.bundle
        self._engine = submission.engine
        self._request = submission.request

    @asynccontextmanager
    async def staged(self, job: Job, environment: Mapping[str, str]) -> AsyncIterator[Staged]:
        """Return the submitted bundle."""
        bundle = self._bundle
        target = await self._engine.target(self._request.child_env)
        usual = os.path.join(bundle.path, "rootfs")
        if target.link_rootfs and not await in_thread(os.path.isdir, usual):
            raise StagingError(
                f"{usual} is not there, and this Slurm looks nowhere else for a root file system: "
                "make it, or use another stager than none"
            )
        args = tuple(bundle.config.process.args)
        view = view_of(bundle.raw, bundle.rootfs, bundle.path, elsewhere=target.elsewhere)
        yield Staged(bundle.path, bundle.rootfs, (), args, view=view)


def configure(settings: object, environment: Mapping[str, str]) -> None:
    """Need nothing."""


@asynccontextmanager
async def stager(configuration: None, submission: Submission) -> AsyncIterator[_Unstaged]:
    """See `supervisor.contracts.plugin.StagePlugin`."""
    yield _Unstaged(submission)


async def undo(left: Leftover) -> None:
    """Nothing was done."""
