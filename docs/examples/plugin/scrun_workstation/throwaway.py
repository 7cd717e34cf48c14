"""The plugin stage/throwaway: each container runs in a copy of its root file system.

The copy is removed at the end. So one bundle can serve any number of containers, and none of them
changes it. scrun's own policy does the rest, on a bundle with the copy.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
import trio

from scrun.core.trees import remove_tree
from scrun.oci.config import Bundle
from scrun.supervisor.contracts.engine import Job, JobRequest
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.contracts.stager import Leftover, Submission
from scrun.supervisor.staging import builtin
from scrun.supervisor.staging.commands import carry_out
from scrun.supervisor.staging.staged_bundle import directory_for, make_directory

plugin_type = "stage/throwaway"
plugin_name = "Throw-away copies"
plugin_version = "1.0.0"


def configure(settings: object, environment: Mapping[str, str]) -> None:
    """Return no configuration: the plugin has no settings."""


@asynccontextmanager
async def stager(configuration: None, submission: Submission) -> AsyncIterator["Throwaway"]:
    """Return the stager; all the work is done when there is a job."""
    yield Throwaway(submission)


async def undo(left: Leftover) -> None:
    """Remove what a dead supervisor left behind."""
    await builtin.undo(left)
    if left.record.staged:
        await trio.to_thread.run_sync(remove_tree, _copy(left.record.staged))


class Throwaway:
    """The stager of one bundle (see `supervisor.contracts.stager.Stager`)."""

    def __init__(self, submission: Submission) -> None:
        """Take the submission."""
        self._submission = submission

    @asynccontextmanager
    async def staged(self, job: Job, environment: Mapping[str, str]) -> AsyncIterator[Staged]:
        """Copy, let the policy stage the rest, and remove the copy when the block is left."""
        submission, bundle = self._submission, self._submission.bundle
        copy = _copy(directory_for(submission.settings.staging, submission.request))
        try:
            await trio.to_thread.run_sync(make_directory, copy)
            await _fill(copy, bundle.rootfs, submission.request)
            copied = msgspec.structs.replace(submission, bundle=_with_root(bundle, copy))
            async with (
                builtin.stager(None, copied) as policy,
                policy.staged(job, environment) as place,
            ):
                yield place
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(remove_tree, copy)


def _copy(staged: str) -> str:
    """Return the path of the copy: beside the staged bundle, where the nodes see it."""
    return f"{staged}.root"


def _with_root(bundle: Bundle, root: str) -> Bundle:
    raw = {**bundle.raw, "root": {**bundle.raw["root"], "path": root}}
    return msgspec.structs.replace(bundle, raw=raw, rootfs=root)


async def _fill(copy: str, rootfs: str, request: JobRequest) -> None:
    """Copy a root file system with `cp`, a child of the supervisor: cancelling this ends it."""
    command = ["cp", "-a", "--reflink=auto", "--", os.path.join(rootfs, "."), copy]
    await carry_out(command, request, f"copying {rootfs}")
