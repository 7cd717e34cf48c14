"""Stage in, and when the block is left stage out, whatever happened."""

import os
import pwd
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from scrun.errors import StagingError
from scrun.oci.config import Bundle
from scrun.settings.load import Staging
from scrun.settings.ociconf import substitute
from supervisor.engines.base import Engine, Request
from supervisor.processes import child
from supervisor.pumps import messages
from supervisor.staging.place import Staged, stage_in, stage_out

_CLEAN_UP = 60.0


def directory_for(settings: Staging, request: Request) -> str:
    """Return the directory of a container's staged bundle, on disk before stage in begins."""
    if settings.scratch is None:
        return os.path.join(request.record, "bundle")
    uid = os.getuid()
    values = {"u": pwd.getpwuid(uid).pw_name, "U": str(uid)}
    return os.path.join(substitute(settings.scratch, values, shell=False), request.container)


@asynccontextmanager
async def staged(
    bundle: Bundle, directory: str, settings: Staging, engine: Engine, request: Request
) -> AsyncIterator[Staged]:
    """Make a bundle that the engine's nodes can run, for as long as the block lasts.

    Args:
        bundle: The submitted bundle.
        directory: Where the staged one goes.
        settings: The section [staging] of the settings.
        engine: Where it will run.
        request: What the job was asked for with.

    Raises:
        StagingError: It cannot be done, or took too long.
    """
    target = await engine.target(request.setting)

    def execute(command: Sequence[str]) -> None:
        trio.from_thread.run(_execute, command, request)

    try:
        with trio.move_on_after(settings.timeout) as patience:
            done = await trio.to_thread.run_sync(
                lambda: stage_in(bundle.raw, bundle.path, directory, target, execute=execute)
            )
        if patience.cancelled_caught:
            raise StagingError(f"stage in took longer than {settings.timeout:g} s")
        for note in done.notes:
            request.journal.write("info", note)
        yield done
    finally:
        with trio.move_on_after(_CLEAN_UP, shield=True):
            await trio.to_thread.run_sync(stage_out, directory, abandon_on_cancel=True)


async def _execute(command: Sequence[str], request: Request) -> None:
    said: list[str] = []
    async with (
        messages(said.append) as stderr,
        child(command, request.setting, stderr=stderr) as running,
    ):
        status = await running.wait()
    if status:
        reason = said[-1] if said else f"status {status}"
        raise StagingError(f"copying the root file system failed: {reason}")
