"""The plugin stage/builtin: stages bundles by scrun's own policy."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec
import trio

from scrun.core.errors import EngineError, StagingError
from scrun.core.paths import real_id
from scrun.images.leases import lease_of
from scrun.oci.userns import is_nested
from scrun.settings.file.load import Settings
from scrun.supervisor.contracts.engine import Job, JobRequest
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.contracts.stager import Leftover, Submission
from scrun.supervisor.contracts.target import ImageFile, Mounting
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.staging.commands import carry_out
from scrun.supervisor.staging.id_maps import cache_of, with_ids
from scrun.supervisor.staging.image_store import images_for, told_from_thread
from scrun.supervisor.staging.layers import Unusable
from scrun.supervisor.staging.mounts import binds, is_engine_socket
from scrun.supervisor.staging.on_node import SENT, archive_of, removing, sending
from scrun.supervisor.staging.overlaid import Overlays
from scrun.supervisor.staging.owner import beside, directory_for, owner_of
from scrun.supervisor.staging.stage_out import (
    clean,
    keep_changes,
    return_changes,
    stage_out,
    unpacked,
)
from scrun.supervisor.staging.staged_bundle import stage_in
from scrun.supervisor.staging.stored import Mounter, progress
from scrun.supervisor.staging.transfer import Transfer
from scrun.supervisor.staging.volumes import bring_back, uses_volumes
from scrun.supervisor.wire.frames import NESTED, SOCKETS

plugin_type = "stage/builtin"
plugin_name = "Built-in policy"
plugin_version = "1.0.0"

_CLEAN_UP = 60.0
_ANSWER = 60.0


def configure(settings: object, environment: Mapping[str, str]) -> None:
    """Return no configuration: the settings come with the submission."""


@asynccontextmanager
async def stager(configuration: None, submission: Submission) -> AsyncIterator["BuiltIn"]:
    """Provide the stager; see `contracts.plugin.StagePlugin`."""
    yield BuiltIn(submission)


async def undo(left: Leftover) -> None:
    """Copy the container's changes back, and remove the staged bundle."""
    directory, served = left.record.staged, left.served
    if not directory:
        return
    if served is None:
        await in_thread(clean, directory, left.record.rootfs)
        return
    changes = _Changes(served.staged, served.request, left.settings, served.skip_stage_out)
    try:
        await changes.bring_back(served.job, privileged=real_id("uid") == 0)
    finally:
        with trio.CancelScope(shield=True):
            await _remove(directory, served.request, abandon=False)


async def _remove(directory: str, request: JobRequest, *, abandon: bool) -> bool:
    """Remove a staged bundle; tell whether it is gone. In `finally` it hides no StagingError."""
    lost = isinstance(sys.exception(), StagingError)
    try:
        return await in_thread(_remove_whole, directory, abandon=abandon)
    except StagingError as error:
        if not lost:
            raise
        request.journal.write("error", str(error))
        return False


def _remove_whole(directory: str) -> bool:
    stage_out(directory)
    return not os.path.lexists(directory)


class BuiltIn:
    """The stager of one bundle by the policy (see `supervisor.contracts.stager.Stager`)."""

    def __init__(self, submission: Submission) -> None:
        self._bundle = submission.bundle
        self._all_settings = submission.settings
        self._settings = submission.settings.staging
        self._engine = submission.engine
        self._request = submission.request
        self._skip_stage_out = submission.skip_stage_out
        self._removed = submission.removed

    @asynccontextmanager
    async def staged(self, job: Job, environment: Mapping[str, str]) -> AsyncIterator[Staged]:
        bundle, settings, request = self._bundle, self._settings, self._request
        directory = directory_for(settings, request)
        target = await self._engine.target(request.child_env)
        target, why_one_user = await with_ids(target, job, settings.id_map, request)
        target = msgspec.structs.replace(target, neighbours=await job.neighbours())
        sources = binds(bundle.raw.get("mounts") or [], bundle.path)
        if settings.sockets == "own" and any(map(is_engine_socket, sources)):
            carries = await job.shim_protocol() >= SOCKETS
            target = msgspec.structs.replace(target, sockets=carries)
        if target.ids is not None and is_nested(bundle.raw, target.ids):
            nests = await job.shim_protocol() >= NESTED
            target = msgspec.structs.replace(target, nests=nests)
        owner = owner_of(request.record, bundle.rootfs) if settings.scratch else None

        def execute(command: Sequence[str]) -> None:
            trio.from_thread.run(carry_out, command, request, "copying the root file system")

        wanted = settings.overlay == "mount"
        cache = cache_of(request.child_env.environment, "layers.json")

        def overlays() -> Overlays | None:
            if (tasks := job.separate_tasks) is not None:
                return Overlays(
                    lambda script: trio.from_thread.run(_ask, job, script),
                    cache,
                    images_for(self._all_settings, request),
                    wanted=wanted,
                    tasks=tasks,
                    mount_points=job.mount_points,
                    mounter=self._mounter(job) if job.mounts_images else None,
                    mounted=job.mounted,
                )
            if wanted and not target.elsewhere:
                images = images_for(self._all_settings, request)
                return Overlays(_ask_here, cache, images, keeps=False)
            return None

        limit = settings.copy_size << 20
        lease = lease_of(os.path.dirname(request.record), request.container)
        transfer = Transfer(
            lease, limit, told_from_thread(self._request.journal), trio.from_thread.check_cancelled
        )

        def stage() -> tuple[Staged, bool]:
            done = stage_in(
                bundle.raw,
                bundle.path,
                directory,
                target,
                owner=owner,
                transfer=transfer,
                execute=execute,
                overlays=overlays(),
            )
            return done, uses_volumes(done.bundle)

        with trio.move_on_after(settings.timeout) as patience:
            # the thread always ends, and leaves nothing behind if it fails
            done, has_volumes = await in_thread(stage)
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
                changes = _Changes(
                    done, request, self._all_settings, self._skip_stage_out, has_volumes
                )
                await changes.bring_back(job, privileged=not target.rootless)
        finally:
            # a longer removal goes on in its thread, and stays in the record until it is done
            with trio.move_on_after(_CLEAN_UP, shield=True):
                await job.unmount()
                if await _remove(directory, request, abandon=True):
                    self._removed()

    def _mounter(self, job: Job) -> Mounter:
        shown, tell = "", self._request.journal.progress()

        def say(count: int, total: int) -> None:
            nonlocal shown
            if (text := progress(count, total)) != shown:
                shown = text
                tell(f"image: {text} sent to the node", count / total if total else None)

        async def mount(mounting: Mounting) -> str:
            try:
                with trio.fail_after(_ANSWER):
                    return await job.mount(mounting)
            except trio.TooSlowError as error:
                raise EngineError(f"no answer in {_ANSWER:g} s") from error

        async def send(images: Sequence[tuple[ImageFile, str]], mounting: Mounting) -> None:
            limit = self._all_settings.images.node_size << 20
            try:
                there = await job.send([image for image, _ in images], limit, say)
            except EngineError as error:
                raise EngineError(f"could not be sent: {error}") from error
            points = [point for _, point in images]
            files = [list(zip(paths, points, strict=True)) for paths in there]
            await mount(msgspec.structs.replace(mounting, files=files))

        return Mounter(
            lambda mounting: trio.from_thread.run(mount, mounting),
            lambda images, mounting: trio.from_thread.run(send, images, mounting),
            lambda: trio.from_thread.run(job.unmount),
        )


async def _ask(job: Job, script: str) -> list[str]:
    """Run a script on a container's nodes; Unusable without an answer."""
    try:
        with trio.fail_after(_ANSWER):
            return await job.ask(lambda _: script)
    except (EngineError, trio.TooSlowError) as error:
        why = str(error) or f"no answer in {_ANSWER:g} s"
        raise Unusable(f"may not be on the node, which cannot be asked: {why}") from error


def _ask_here(script: str) -> list[str]:
    """Run a script on this machine; Unusable without an answer."""
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


class _Changes:
    """Brings changes in a staged bundle, or on nodes, back to the root file system and volumes."""

    def __init__(
        self,
        done: Staged,
        request: JobRequest,
        settings: Settings,
        skip: trio.Event,
        has_volumes: bool = True,
    ) -> None:
        """`skip` is set when the user does not want to wait; `has_volumes`: or it is not known."""
        self._has_volumes = has_volumes
        self._done = done
        self._request = request
        self._settings = settings
        self._skip = skip

    async def bring_back(self, job: Job, *, privileged: bool) -> None:
        """Bring back what is wanted, after the container; StagingError says where it is."""
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
        if not self._has_volumes:
            return
        deadline = time.monotonic() + self._settings.staging.timeout

        def wait() -> None:
            if time.monotonic() > deadline:
                raise StagingError("it took longer than the setting [staging] timeout")

        tell = told_from_thread(self._request.journal)
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
            f"{error}; they are kept in {place}: remove it when you need them no longer"
        )

    async def _bring_back(self, job: Job, *, privileged: bool) -> None:
        if self._done.on_nodes:
            bring = self._from_node if self._done.place else self._from_nodes
            with trio.CancelScope(shield=True):
                await bring(job, privileged=privileged)
        elif self._done.copied_from:
            await self._return(privileged=privileged)

    async def _from_node(self, job: Job, *, privileged: bool) -> None:
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

    async def _from_nodes(self, job: Job, *, privileged: bool) -> None:
        """Bring back what the tasks have sent at their ends; of each all, or nothing."""
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
        stack = contextlib.ExitStack()
        try:
            unpacking = unpacked(archives, owners=privileged)
            uppers = await in_thread(stack.enter_context, unpacking)
            await self._return(privileged=privileged, uppers=uppers)
        finally:
            await in_thread(stack.close)

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
