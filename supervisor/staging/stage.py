"""Stage in, and when the block is left stage out, whatever happened.

Who stages is decided before there is a job: a site's scrun.lua, or the built-in policy.
"""

import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import msgspec
import trio

from scrun.errors import StagingError
from scrun.oci.config import Bundle
from scrun.settings.load import Settings, Staging
from supervisor.engines.base import Engine, Job, Request
from supervisor.lua.find import find_script
from supervisor.processes import child
from supervisor.pumps import messages
from supervisor.staging.place import (
    Staged,
    directory_for,
    return_changes,
    stage_in,
    stage_out,
)
from supervisor.staging.scripted import scripted

_CLEAN_UP = 60.0


class Stager(Protocol):
    """Makes one bundle ready for the nodes of a job."""

    def staged(
        self, job: Job, environment: Mapping[str, str]
    ) -> AbstractAsyncContextManager[Staged]:
        """Make a bundle that the job's nodes can run, for as long as the block lasts.

        Raises:
            StagingError: It cannot be done, took too long, or could not be undone.
        """
        ...


@asynccontextmanager
async def stager_for(
    bundle: Bundle, settings: Settings, engine: Engine, request: Request, hurry: trio.Event
) -> AsyncIterator[Stager]:
    """Find out who stages, and have it ready. There is no job yet.

    Args:
        bundle: The submitted bundle.
        settings: The container's.
        engine: Where it will run.
        request: What the job will be asked for with.
        hurry: Set when nobody wants to wait for the end of a script's stage_out.

    Raises:
        StagingError: The script cannot be loaded.
        SettingsError: It must not be.
    """
    script = await trio.to_thread.run_sync(find_script, settings, engine.name)
    if script is None:
        yield BuiltIn(bundle, settings.staging, engine, request, hurry)
        return
    async with scripted(script, bundle, settings, engine, request, hurry) as stager:
        yield stager


class BuiltIn:
    """The built-in policy."""

    def __init__(
        self,
        bundle: Bundle,
        settings: Staging,
        engine: Engine,
        request: Request,
        hurry: trio.Event,
    ) -> None:
        self._bundle = bundle
        self._settings = settings
        self._engine = engine
        self._request = request
        self._hurry = hurry

    @asynccontextmanager
    async def staged(self, job: Job, environment: Mapping[str, str]) -> AsyncIterator[Staged]:
        """See `Stager`."""
        bundle, settings, request = self._bundle, self._settings, self._request
        directory = directory_for(settings, request)
        target = await self._engine.target(request.setting)

        def execute(command: Sequence[str]) -> None:
            trio.from_thread.run(_execute, command, request)

        with trio.move_on_after(settings.timeout) as patience:
            # a thread: whatever happens it comes to its end, and leaves nothing if it fails
            done = await trio.to_thread.run_sync(
                lambda: stage_in(bundle.raw, bundle.path, directory, target, execute=execute)
            )
        if patience.cancelled_caught:
            raise StagingError(f"stage in took longer than {settings.timeout:g} s")
        try:
            try:
                yield msgspec.structs.replace(done, arguments=tuple(bundle.config.process.args))
            finally:
                if done.copied_from:
                    await self._return_changes(done, rootless=target.rootless)
        finally:
            with trio.move_on_after(_CLEAN_UP, shield=True):
                await trio.to_thread.run_sync(stage_out, directory, abandon_on_cancel=True)

    async def _return_changes(self, done: Staged, *, rootless: bool) -> None:
        """Bring changes back, whatever happened, unless somebody does not want to wait."""
        enough = threading.Event()

        async def watch() -> None:
            with trio.move_on_after(self._settings.timeout):
                await self._hurry.wait()
            enough.set()

        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                await trio.to_thread.run_sync(
                    lambda: return_changes(
                        done.bundle,
                        done.copied_from,
                        rootless=rootless,
                        go_on=lambda: not enough.is_set(),
                    )
                )
                nursery.cancel_scope.cancel()


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
