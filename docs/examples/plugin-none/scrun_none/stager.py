"""The plugin stage/none: runs bundles unchanged.

For bundles that were made for the nodes. Nothing is checked, changed or copied: the runtime gets
config.json as it is, with its hooks, limits and mounts.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from scrun.core.errors import StagingError
from scrun.supervisor.contracts.engine import Job
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.contracts.stager import Leftover, Submission
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.staging.mounts import view_of

plugin_type = "stage/none"
plugin_name = "Bundles as they are"
plugin_version = "1.0.0"


class _Unstaged:
    """The stager of one bundle, which stays unchanged."""

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
                f"{usual} does not exist, and this Slurm finds no other root file system: "
                "create it, or use another stager than none"
            )
        args = tuple(bundle.config.process.args)
        view = view_of(bundle.raw, bundle.rootfs, bundle.path, elsewhere=target.elsewhere)
        yield Staged(bundle.path, bundle.rootfs, (), args, view=view)


def configure(settings: object, environment: Mapping[str, str]) -> None:
    """Return no configuration: the stager has no settings."""


@asynccontextmanager
async def stager(configuration: None, submission: Submission) -> AsyncIterator[_Unstaged]:
    """See `supervisor.contracts.plugin.StagePlugin`."""
    yield _Unstaged(submission)


async def undo(left: Leftover) -> None:
    """Do nothing: nothing was staged."""
