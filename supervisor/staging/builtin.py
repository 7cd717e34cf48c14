"""The plugin stage/builtin: stages bundles by scrun's own policy."""

import contextlib
import functools
import os
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec
import trio

from scrun.core.errors import EngineError, StagingError
from scrun.supervisor.children.processes import child
from scrun.supervisor.children.pumps import messages
from scrun.supervisor.contracts.engine import Job, JobRequest
from scrun.supervisor.contracts.neighbours import SharesNamespaces
from scrun.supervisor.contracts.node import MountsImages, OnNodes
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.contracts.stager import Leftover, Submission
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.staging.id_maps import cache_of, with_ids
from scrun.supervisor.staging.image_store import images_for
from scrun.supervisor.staging.layout import UPPER
from scrun.supervisor.staging.mapped import remove_whoever_owns_it
from scrun.supervisor.staging.on_node import SENT, archive_of, removing, sending, unpacking
from scrun.supervisor.staging.overlaid import Overlays
from scrun.supervisor.staging.overlay_options import Unusable
from scrun.supervisor.staging.owner import owner_of
from scrun.supervisor.staging.packing import Mounter
from scrun.supervisor.staging.staged_bundle import (
    clean,
    directory_for,
    return_changes,
    stage_in,
    stage_out,
)

plugin_type = "stage/builtin"
plugin_name = "Built-in policy"
plugin_version = "1.0.0"

_CLEAN_UP = 60.0
_ANSWER = 60.0


def configure(settings: object, environment: Mapping[str, str]) -> None:
    """Return no configuration: the settings come with the submission."""


@asynccontextmanager
async def stager(configuration: None, submission: Submission) -> AsyncIterator["BuiltIn"]:
    """See `supervisor.contracts.plugin.StagePlugin`."""
    yield BuiltIn(submission)


async def undo(left: Leftover) -> None:
    """Copy the container's changes back, and remove the staged bundle."""
    if left.record.staged:
        await in_thread(clean, left.record.staged, left.record.rootfs)


class BuiltIn:
    """The stager of one bundle by the policy (see `supervisor.contracts.stager.Stager`)."""

    def __init__(self, submission: Submission) -> None:
        self._bundle = submission.bundle
        self._all_settings = submission.settings
        self._settings = submission.settings.staging
        self._engine = submission.engine
        self._request = submission.request
        self._skip_stage_out = submission.skip_stage_out

    @asynccontextmanager
    async def staged(self, job: Job, environment: Mapping[str, str]) -> AsyncIterator[Staged]:
        """See `Stager`."""
        bundle, settings, request = self._bundle, self._settings, self._request
        directory = directory_for(settings, request)
        target = await self._engine.target(request.child_env)
        target, why_one_user = await with_ids(target, job, settings.id_map, request)
        if isinstance(job, SharesNamespaces):
            target = msgspec.structs.replace(target, neighbours=await job.neighbours())
        owner = owner_of(request.record, bundle.rootfs) if settings.scratch else None

        def execute(command: Sequence[str]) -> None:
            trio.from_thread.run(carry_out, command, request, "copying the root file system")

        overlays = None
        wanted = settings.overlay == "mount"
        cache = cache_of(request.child_env.environment, "layers.json")
        if isinstance(job, OnNodes):
            images = await in_thread(images_for, self._all_settings, request, abandon=True)
            overlays = Overlays(
                lambda script: trio.from_thread.run(_ask, job, script),
                cache,
                images,
                wanted=wanted,
                tasks=job.separate_tasks,
                mounter=_mounter(job) if isinstance(job, MountsImages) else None,
            )
        elif wanted and not target.elsewhere:
            overlays = Overlays(_ask_here, cache, keeps=False)

        with trio.move_on_after(settings.timeout) as patience:
            # the thread always ends, and leaves nothing behind if it fails
            done = await in_thread(
                lambda: stage_in(
                    bundle.raw,
                    bundle.path,
                    directory,
                    target,
                    owner=owner,
                    execute=execute,
                    overlays=overlays,
                )
            )
        if patience.cancelled_caught:
            raise StagingError(f"stage in took longer than {settings.timeout:g} s")
        try:
            try:
                yield msgspec.structs.replace(
                    done,
                    arguments=tuple(bundle.config.process.args),
                    notes=(*filter(None, [why_one_user]), *done.notes),
                )
            finally:
                privileged = not target.rootless
                if done.place and isinstance(job, OnNodes):
                    with trio.CancelScope(shield=True):
                        await self._bring_from_node(job, done, privileged=privileged)
                elif any(task.last for task in done.tasks) and isinstance(job, OnNodes):
                    with trio.CancelScope(shield=True):
                        await self._bring_from_nodes(job, done, privileged=privileged)
                elif done.copied_from:
                    await self._return_changes(done, privileged=privileged)
        finally:
            # a longer removal goes on in its thread, and stays in the record until it is done
            with trio.move_on_after(_CLEAN_UP, shield=True):
                if isinstance(job, MountsImages):
                    await job.unmount()
                await in_thread(stage_out, directory, abandon=True)

    async def _bring_from_node(self, job: OnNodes, done: Staged, *, privileged: bool) -> None:
        """Bring back what was written on the node, as a whole; then nothing is left there.

        Raises:
            StagingError: It is still there; or see `return_changes`.
        """
        if not done.copied_from:
            with contextlib.suppress(EngineError), trio.move_on_after(_ANSWER):
                await job.ask(lambda _: removing([done.place], rootless=not privileged))
            return
        archive = archive_of(done.bundle, 0)
        said = "no answer"
        with contextlib.suppress(EngineError), trio.move_on_after(self._settings.timeout):
            [said] = await job.ask(lambda _: sending(done.place, archive, rootless=not privileged))
        lines = said.split("\n")
        if SENT not in lines:
            lost = f"not all of the container's changes are in {done.copied_from}"
            why = next(filter(None, lines), "no answer")
            raise StagingError(f"{lost}: they are in {done.place} on its node: {why}")
        await self._apply(done, [archive], privileged=privileged)

    async def _bring_from_nodes(self, job: OnNodes, done: Staged, *, privileged: bool) -> None:
        """Bring back what the tasks have sent at their ends; of each all, or nothing.

        Raises:
            StagingError: Some is missing; or see `return_changes`.
        """
        # of tasks that were never made; the others' shims have gone
        with contextlib.suppress(EngineError), trio.move_on_after(_ANSWER):
            await job.ask(lambda task: done.tasks[task].last)
        if not done.copied_from:
            return
        archives = [archive_of(done.bundle, task) for task in range(len(done.tasks))]
        there = await in_thread(lambda: [path for path in archives if os.path.exists(path)])
        if there:
            await self._apply(done, there, privileged=privileged)
        if there != archives:
            lost = f"not all of the container's changes are in {done.copied_from}"
            pairs = zip(archives, done.tasks, strict=True)
            places = ", ".join(task.place for path, task in pairs if path not in there)
            raise StagingError(f"{lost}: they are in {places} on its nodes, if they still exist")

    async def _apply(self, done: Staged, archives: Sequence[str], *, privileged: bool) -> None:
        """Unpack what came from the nodes, and copy the changes back."""
        into = await in_thread(
            functools.partial(tempfile.mkdtemp, prefix="scrun-", dir="/var/tmp")
        )
        try:
            uppers = []
            for number, archive in enumerate(archives):
                folder = os.path.join(into, str(number))
                await in_thread(os.mkdir, folder, 0o700)
                command = unpacking(archive, folder, owners=privileged)
                await carry_out(command, self._request, "unpacking the container's changes")
                uppers.append(os.path.join(folder, UPPER))
            await self._return_changes(done, privileged=privileged, uppers=uppers)
        finally:
            await in_thread(remove_whoever_owns_it, into)

    async def _return_changes(
        self, done: Staged, *, privileged: bool, uppers: Sequence[str] = ()
    ) -> None:
        """Copy changes back, even on errors, unless stage-out is skipped."""
        enough = threading.Event()

        async def watch() -> None:
            with trio.move_on_after(self._settings.timeout):
                await self._skip_stage_out.wait()
            enough.set()

        with trio.CancelScope(shield=True):
            async with unwrapped() as nursery:
                nursery.start_soon(watch)
                await in_thread(
                    lambda: return_changes(
                        done.bundle,
                        done.copied_from,
                        privileged=privileged,
                        go_on=lambda: not enough.is_set(),
                        uppers=uppers,
                    )
                )
                nursery.cancel_scope.cancel()


async def _ask(job: OnNodes, script: str) -> list[str]:
    """Run a script on a container's nodes.

    Raises:
        Unusable: There is no answer.
    """
    try:
        with trio.fail_after(_ANSWER):
            return await job.ask(lambda _: script)
    except (EngineError, trio.TooSlowError) as error:
        why = str(error) or f"no answer in {_ANSWER:g} s"
        raise Unusable(f"may not be on the node, which cannot be asked: {why}") from error


def _mounter(job: MountsImages) -> Mounter:
    async def mount(files: Sequence[tuple[str, str]]) -> str:
        try:
            with trio.fail_after(_ANSWER):
                return await job.mount(files)
        except (EngineError, trio.TooSlowError) as error:
            raise Unusable(str(error) or f"no answer in {_ANSWER:g} s") from error

    return Mounter(
        lambda files: trio.from_thread.run(mount, files),
        lambda: trio.from_thread.run(job.unmount),
    )


def _ask_here(script: str) -> list[str]:
    """Run a script on this machine.

    Raises:
        Unusable: There is no answer.
    """
    command = ("/bin/sh", "-c", script)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ANSWER,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unusable(f"cannot be mounted: {error}") from error
    return [done.stdout.decode(errors="replace")]


async def carry_out(command: Sequence[str], request: JobRequest, what: str) -> None:
    """Run a command for a bundle.

    Args:
        command: The command.
        request: The request of the container.
        what: What it does, for the error.

    Raises:
        StagingError: The command failed; with its last line of standard error.
    """
    last_lines: deque[str] = deque(
        maxlen=1
    )  # a rootless copy prints a line for each unreadable file
    async with (
        messages(last_lines.append) as stderr,
        child(command, request.child_env, stderr=stderr) as running,
    ):
        status = await running.wait()
    if status:
        reason = last_lines[-1] if last_lines else f"status {status}"
        raise StagingError(f"{what} failed: {reason}")
