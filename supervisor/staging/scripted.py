"""The plugin stage/lua: stages bundles with a site's scrun.lua."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import trio

from scrun.core.errors import BundleError, EngineError, PluginUnavailable, StagingError
from scrun.images.squashfs import file_of
from scrun.model.record import Moved
from scrun.oci.config import Bundle, read_config
from scrun.settings.file.load import Settings
from scrun.settings.script import find_script, site_of
from scrun.supervisor.contracts.engine import Job, JobRequest
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.contracts.stager import Leftover, Submission
from scrun.supervisor.contracts.target import Target
from scrun.supervisor.core.files import write
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.ownership import staging_out
from scrun.supervisor.core.threads import in_thread, look
from scrun.supervisor.log.files import open_file
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.scripts.host import StagingScript, loaded
from scrun.supervisor.scripts.process import Remote
from scrun.supervisor.staging import builtin
from scrun.supervisor.staging.id_maps import remove_whoever_owns_it
from scrun.supervisor.staging.mounts import Notes, view_of
from scrun.supervisor.staging.owner import Owner, directory_for, owner_of
from scrun.supervisor.staging.policy import fit_annotations
from scrun.supervisor.staging.stage_out import stage_out as clean
from scrun.supervisor.staging.staged_bundle import make_directory

_IN = "slurm_scrun_stage_in"
_OUT = "slurm_scrun_stage_out"


class Scripted:
    """A loaded script that stages one bundle (see `supervisor.contracts.stager.Stager`)."""

    def __init__(self, script: StagingScript, done: trio.Event, submission: Submission) -> None:
        """`done` is set when the worker of the script may end."""
        self._script = script
        self._done = done
        self._bundle = submission.bundle
        self._settings = submission.settings
        self._engine = submission.engine
        self._request = submission.request
        self._skip_stage_out = submission.skip_stage_out
        self._staged_out = submission.staged_out

    @asynccontextmanager
    async def staged(self, job: Job, environment: Mapping[str, str]) -> AsyncIterator[Staged]:
        """Call stage_in, and stage_out when the block is left.

        After a failed or cancelled stage_in there is no stage_out: a script that copies the root
        file system back would copy an incomplete one. The script has the job's variables, and
        SCRUN_*.
        """
        timeout = self._settings.staging.timeout
        moved: Moved | None = None
        try:
            with trio.move_on_after(timeout):
                moved = await self.stage_in(job, environment)
        finally:
            self._done.set()
        if moved is None:
            raise StagingError(f"{self._script.path}: {_IN} took longer than {timeout:g} s")
        variables = {
            **environment,
            "SCRUN_BUNDLE": moved.bundle,
            "SCRUN_ROOTFS_PATH": moved.root,
        }
        staged: Staged | None = None
        try:
            staged = await self.describe(moved)
            yield staged
        finally:
            with trio.CancelScope(shield=True):
                try:
                    await self._stage_out(moved, job, variables)
                finally:
                    if staged is not None and staged.bundle == self._shadow:
                        await in_thread(clean, self._shadow)

    async def _stage_out(self, moved: Moved, job: Job, variables: Mapping[str, str]) -> None:
        """Call stage_out. If it cannot even start (no process, no memory), the record keeps it."""
        settings, request = self._settings, self._request
        try:
            remote = partial(job.command, variables=variables)
            await stage_out(
                moved, job.id, variables, settings, request, remote, self._skip_stage_out
            )
        except StagingError:
            self._staged_out()
            raise
        self._staged_out()

    async def stage_in(self, job: Job, environment: Mapping[str, str]) -> Moved:
        bundle, request = self._bundle, self._request
        if file := await look("image", file_of, bundle.rootfs):
            remedy = "name this script by `script` in the section [lua] of your scrun.toml"
            raise StagingError(f"{self._script.path}: does not see what is in {file}: {remedy}")
        target = await self._engine.target(request.child_env)
        spool = os.path.join(request.record, "spool", "")  # scripts append names to it
        await in_thread(_make_empty, spool)
        arguments = (
            request.container, bundle.path, spool, bundle.config_file, _number(job.id),
            target.uid, target.gid, None,
        )  # fmt: skip
        originals = (bundle.path, bundle.rootfs)
        remote = partial(job.command, variables=environment)
        new_bundle, new_root = await self._script.call(
            _IN, arguments, originals, environment, remote
        )
        return Moved(
            script=self._script.path,
            bundle=os.path.join(request.directory, new_bundle or bundle.path),
            original_bundle=bundle.path,
            root=new_root or bundle.rootfs,
            original_root=bundle.rootfs,
            spool=spool,
            config_file=bundle.config_file,
            user=target.uid,
            group=target.gid,
        )

    @property
    def _shadow(self) -> str:
        return directory_for(self._settings.staging, self._request)

    async def describe(self, moved: Moved) -> Staged:
        """Describe the script's bundle, as far as it is visible here."""
        target = await self._engine.target(self._request.child_env)
        owner = owner_of(self._request.record, "") if self._settings.staging.scratch else None
        return await in_thread(_describe, moved, self._bundle, target, self._shadow, owner)


def _describe(
    moved: Moved, bundle: Bundle, target: Target, shadow: str, owner: Owner | None
) -> Staged:
    """Describe the script's bundle; make one of our own where the runtime is not to have that."""
    name = os.path.join(moved.bundle, "config.json")
    if os.path.isfile(moved.bundle):
        reason = f"has called set_bundle_path with a file: {moved.bundle}: name its directory"
        raise StagingError(f"{moved.script}: {_IN} {reason}")
    if not os.path.exists(name):  # it may be on a file system of the nodes
        return Staged(moved.bundle, moved.root, (), tuple(bundle.config.process.args), moved)
    try:
        raw, config = read_config(name)
    except BundleError as error:
        reason = f"left an invalid config.json: {error}"
        raise StagingError(f"{moved.script}: {_IN} {reason}") from error
    root = os.path.join(moved.bundle, config.root.path)
    path = moved.bundle
    notes = Notes()
    fitted = msgspec.json.decode(msgspec.json.encode(raw))
    if target.elsewhere:
        fit_annotations(fitted, notes, bundle.raw.get("annotations") or {})
    is_named = os.path.lexists(os.path.join(path, "rootfs"))
    if notes.missed or (target.link_rootfs and not is_named):
        try:
            _write_shadow(fitted, path, root, shadow, owner)
        except OSError as error:
            raise StagingError(f"{shadow}: {error.strerror}") from error
        path = shadow
    view = None
    if os.path.realpath(root) == os.path.realpath(bundle.rootfs):  # the engine has it there too
        view = view_of(raw, root, moved.bundle, elsewhere=True)
    return Staged(
        path, root, tuple(notes.lines), tuple(config.process.args), moved,
        view=view, missed=tuple(notes.missed),
    )  # fmt: skip


def _write_shadow(
    config: dict[str, Any], bundle: str, root: str, shadow: str, owner: Owner | None
) -> None:
    """Write a bundle; with a link `rootfs`, the only name that slurmstepd 22.05 knows."""
    make_directory(shadow, owner=owner)
    mounts = [
        {**mount, "source": os.path.join(bundle, mount["source"])}
        if mount.get("source") and "bind" in (mount.get("type"), *(mount.get("options") or ()))
        else mount
        for mount in config.get("mounts") or []
    ]
    try:
        os.symlink(os.path.realpath(root), os.path.join(shadow, "rootfs"))
        place = {**config["root"], "path": os.path.realpath(root)}
        content = msgspec.json.encode({**config, "root": place, "mounts": mounts})
        write(os.path.join(shadow, "config.json"), content)
    except BaseException:
        clean(shadow)
        raise


async def stage_out(
    moved: Moved,
    job_id: str,
    environment: Mapping[str, str],
    settings: Settings,
    request: JobRequest,
    remote: Remote,
    skip_stage_out: trio.Event,
) -> None:
    """Call stage_out; only `skip_stage_out` and the time limit interrupt it."""
    arguments = (
        request.container, moved.bundle, moved.original_bundle, moved.root, moved.original_root,
        moved.spool, moved.config_file, _number(job_id), moved.user, moved.group,
    )  # fmt: skip
    failure = f"{moved.script}: {_OUT} did not finish: it took too long"
    try:
        async with unwrapped() as nursery:
            nursery.start_soon(_cancel_when, skip_stage_out, nursery.cancel_scope)
            nursery.cancel_scope.deadline = trio.current_time() + settings.staging.timeout
            site = await look("slurm.conf", site_of, settings)
            async with staging_out(request.record) as inherited:
                child_env = msgspec.structs.replace(request.child_env, descriptors=inherited)
                async with loaded(
                    moved.script, settings.lua, child_env, request.directory, request.journal, site
                ) as script:
                    originals = (moved.original_bundle, moved.original_root)
                    await script.call(_OUT, arguments, originals, environment, remote)
                    failure = ""
            nursery.cancel_scope.cancel()
    except StagingError as error:
        failure = str(error)
    if failure and skip_stage_out.is_set():
        failure = f"{moved.script}: {_OUT} did not finish: it was interrupted"
    if failure:
        raise StagingError(failure)


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _number(job_id: str) -> int:
    return int(job_id) if job_id.isdecimal() else 0


@asynccontextmanager
async def stager(path: str, submission: Submission) -> AsyncIterator[Scripted]:
    """Provide a stager with the script loaded, by its path; its worker ends after stage_in."""
    settings, request = submission.settings, submission.request
    site = await look("slurm.conf", site_of, settings)

    async def keep(task_status: trio.TaskStatus[StagingScript]) -> None:
        async with loaded(
            path, settings.lua, request.child_env, request.directory, request.journal, site
        ) as script:
            task_status.started(script)
            await done.wait()

    done = trio.Event()
    async with unwrapped() as nursery:
        script = await nursery.start(keep)
        yield Scripted(script, done, submission)
        nursery.cancel_scope.cancel()


def _make_empty(spool: str) -> None:
    """Make the directory for a script's files anew: another supervisor may have begun to stage."""
    if os.path.lexists(spool):
        remove_whoever_owns_it(spool.rstrip("/"))
    os.mkdir(spool, 0o700)


plugin_type = "stage/lua"
plugin_name = "The site's scrun.lua"
plugin_version = "1.0.0"


def configure(settings: Settings, environment: Mapping[str, str]) -> str:
    """Find the script, for any engine; PluginUnavailable without one."""
    script = find_script(msgspec.structs.replace(settings, stager="lua"), engine="")
    if script is None:
        raise PluginUnavailable(
            "stager lua: there is no scrun.lua; name one by `script` in the section [lua] of "
            "scrun.toml"
        )
    return script


async def undo(left: Leftover) -> None:
    """Call the script's stage-out, after the end of the job, and clean up."""
    if left.record.moved:
        await _stage_out(left, left.record.moved)
    await builtin.undo(left)  # the bundle that wraps the script's


async def _stage_out(left: Leftover, moved: Moved) -> None:
    record = left.record

    async def remote(script: str, output: int) -> int:
        raise EngineError(f"job {record.job_id} is gone")

    def ignore(*_: object) -> None:
        pass

    file = await open_file(left.settings.log)
    journal = Journal(os.path.join(left.directory, "log"), left.settings.log, record.id, file=file)
    request = JobRequest(
        container=record.id,
        child_env=left.child_env,
        directory=record.bundle,
        record=left.directory,
        journal=journal,
        on_job_id=ignore,
        on_lost=ignore,
    )
    variables = {"SLURM_JOB_ID": record.job_id}
    try:
        await stage_out(
            moved, record.job_id, variables, left.settings, request, remote, trio.Event()
        )
    finally:
        journal.close()
