"""Brings a container's changes back to the engine's root file system, and to its volumes.

Those of the root file system are in the staged bundle, or on the nodes
(`supervisor.staging.on_node`).
"""

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial

import trio

from scrun.core.errors import EngineError, StagingError
from scrun.settings.file.load import Settings
from scrun.supervisor.contracts.engine import Job, JobRequest
from scrun.supervisor.contracts.node import OnNodes
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.staging.commands import carry_out
from scrun.supervisor.staging.layout import UPPER
from scrun.supervisor.staging.mapped import remove_whoever_owns_it
from scrun.supervisor.staging.on_node import SENT, archive_of, removing, sending, unpacking
from scrun.supervisor.staging.owner import beside
from scrun.supervisor.staging.saved_changes import keep_changes
from scrun.supervisor.staging.stage_out import return_changes
from scrun.supervisor.staging.transfer import Transfer
from scrun.supervisor.staging.volumes import bring_back

_ANSWER = 60.0


class Changes:
    """The changes of one container."""

    def __init__(
        self, done: Staged, request: JobRequest, settings: Settings, skip: trio.Event
    ) -> None:
        """Prepare.

        Args:
            done: What was staged.
            request: The request for its job.
            settings: The container's.
            skip: Set when the user does not want to wait.
        """
        self._done = done
        self._request = request
        self._settings = settings
        self._skip = skip

    async def bring_back(self, job: Job, *, privileged: bool) -> None:
        """Bring them back, if they are wanted and not there already; keep what cannot be.

        Args:
            job: The container's job, in which nothing of it runs any more.
            privileged: See `return_changes`.

        Raises:
            StagingError: They were not brought back; it says where they are.
        """
        failures = []
        try:
            await self._bring_back(job, privileged=privileged)
        except StagingError as error:
            if not self._skip.is_set():
                error = await self._kept(error)
            failures.append(str(error))
        try:
            with trio.CancelScope(shield=True):
                await self._bring_volumes_back()
        except StagingError as error:
            failures.append(str(error))
        if failures:
            raise StagingError("; ".join(failures))

    async def _bring_volumes_back(self) -> None:
        """Bring volumes back, in no more time than staging may take; nobody may skip that."""
        deadline = time.monotonic() + self._settings.staging.timeout

        def wait() -> None:
            if time.monotonic() > deadline:
                raise StagingError("it took longer than the setting [staging] timeout")

        def tell(text: str) -> None:
            trio.from_thread.run_sync(self._request.journal.live, text)

        await in_thread(bring_back, self._done.bundle, Transfer(tell=tell, wait=wait))

    async def _kept(self, error: StagingError) -> StagingError:
        """Keep what could not be brought back, and return the error that says where it is."""
        bundle, request = self._done.bundle, self._request
        try:
            with trio.CancelScope(shield=True):
                place = await in_thread(keep_changes, bundle, request.container, beside(bundle))
        except OSError as why:
            return StagingError(f"{error}; they could not be kept: {why.strerror}")
        if not place:
            return error
        return StagingError(
            f"{error}; they are kept in {place}: remove it if you need none of them"
        )

    async def _bring_back(self, job: Job, *, privileged: bool) -> None:
        if self._done.on_nodes and isinstance(job, OnNodes):
            bring = self._from_node if self._done.place else self._from_nodes
            with trio.CancelScope(shield=True):
                await bring(job, privileged=privileged)
        elif self._done.copied_from:
            await self._return(privileged=privileged)

    async def _from_node(self, job: OnNodes, *, privileged: bool) -> None:
        """Bring back what was written on the node, as a whole; then nothing is left there.

        Raises:
            StagingError: It is still there; or see `return_changes`.
        """
        done = self._done
        if not done.copied_from:
            with contextlib.suppress(EngineError), trio.move_on_after(_ANSWER):
                await job.ask(lambda _: removing([done.place], rootless=not privileged))
            return
        archive = archive_of(done.bundle, 0)
        said = "no answer"
        with contextlib.suppress(EngineError), trio.move_on_after(self._settings.staging.timeout):
            [said] = await job.ask(lambda _: sending(done.place, archive, rootless=not privileged))
        lines = said.split("\n")
        if SENT not in lines and not await in_thread(os.path.exists, archive):
            lost = f"not all of the container's changes are in {done.copied_from}"
            why = next(filter(None, lines), "no answer")
            raise StagingError(f"{lost}: they are in {done.place} on its node: {why}")
        await self._apply([archive], privileged=privileged)

    async def _from_nodes(self, job: OnNodes, *, privileged: bool) -> None:
        """Bring back what the tasks have sent at their ends; of each all, or nothing.

        Raises:
            StagingError: Some is missing; or see `return_changes`.
        """
        done = self._done
        # of tasks that were never made; the others' shims have gone
        with contextlib.suppress(EngineError), trio.move_on_after(_ANSWER):
            await job.ask(lambda task: done.tasks[task].last)
        if not done.copied_from:
            return
        archives = [archive_of(done.bundle, task) for task in range(len(done.tasks))]
        there = await in_thread(lambda: [path for path in archives if os.path.exists(path)])
        if there:
            await self._apply(there, privileged=privileged)
        if there != archives:
            lost = f"not all of the container's changes are in {done.copied_from}"
            pairs = zip(archives, done.tasks, strict=True)
            places = ", ".join(task.place for path, task in pairs if path not in there)
            raise StagingError(f"{lost}: they are in {places} on its nodes, if they still exist")

    async def _apply(self, archives: Sequence[str], *, privileged: bool) -> None:
        """Unpack what came from the nodes, and copy the changes back."""
        into = await in_thread(partial(tempfile.mkdtemp, prefix="scrun-", dir="/var/tmp"))
        try:
            uppers = []
            for number, archive in enumerate(archives):
                folder = os.path.join(into, str(number))
                await in_thread(os.mkdir, folder, 0o700)
                command = unpacking(archive, folder, owners=privileged)
                await carry_out(command, self._request, "unpacking the container's changes")
                uppers.append(os.path.join(folder, UPPER))
            await self._return(privileged=privileged, uppers=uppers)
        finally:
            await in_thread(remove_whoever_owns_it, into)

    async def _return(self, *, privileged: bool, uppers: Sequence[str] = ()) -> None:
        """Copy changes back, even on errors, unless stage-out is skipped."""
        enough = threading.Event()

        async def watch() -> None:
            with trio.move_on_after(self._settings.staging.timeout):
                await self._skip.wait()
            enough.set()

        with trio.CancelScope(shield=True):
            async with unwrapped() as nursery:
                nursery.start_soon(watch)
                await in_thread(
                    lambda: return_changes(
                        self._done.bundle,
                        self._done.copied_from,
                        privileged=privileged,
                        go_on=lambda: not enough.is_set(),
                        uppers=uppers,
                    )
                )
                nursery.cancel_scope.cancel()
