"""Cleans up containers whose supervisor died: job, staged bundle, record."""

import contextlib
import os
import re
from functools import partial

import msgspec

from scrun.core.errors import ScrunError, StateError
from scrun.core.paths import has_record
from scrun.model.adoption import is_held
from scrun.model.identity import myself
from scrun.model.record import Record, of_the_lost, read_record, write_record
from scrun.oci.ids import is_id
from scrun.settings.file.load import Settings, load, merge
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.containers.audit import write_end
from scrun.supervisor.containers.records import remove_record
from scrun.supervisor.contracts.deleter import Deleter
from scrun.supervisor.contracts.stager import Leftover
from scrun.supervisor.core.ownership import own, take_over
from scrun.supervisor.core.threads import in_thread, look
from scrun.supervisor.log.supervisor_log import log
from scrun.supervisor.plugins.choose import Engines, Stagers
from scrun.supervisor.plugins.registry import is_type


async def delete(
    directory: str,
    engines: Engines,
    stagers: Stagers,
    socket: str,
    deleter: Deleter | None = None,
) -> bool:
    """Release the job of a container that nobody serves; remove its staged bundle and record.

    Returns:
        Whether the record existed.

    Raises:
        EngineError: The job may still exist; the record stays.
        StateError: The directory is not a record; only records are removed. Or its supervisor is
            alive, or another one is cleaning it up.
    """
    if not has_record(directory):
        return False
    _check(directory)
    try:
        lock = await take_over(directory, before=partial(_note_owner, directory))
    except FileNotFoundError:  # another supervisor has removed it
        return True
    try:
        await _write_end(directory)
        await undo(directory, engines, stagers, deleting=True, deleter=deleter)
        await in_thread(remove_record, directory, socket)
    finally:
        os.close(lock)
    return True


async def undo(
    directory: str,
    engines: Engines,
    stagers: Stagers,
    *,
    deleting: bool = False,
    deleter: Deleter | None = None,
) -> Record:
    """Release all that a container still has; the caller holds its lock.

    Each release is recorded at once: if we are killed, the next supervisor does only the rest.

    Args:
        deleting: Whether the container is deleted: then release what waits for that, too.

    Returns:
        The updated record.

    Raises:
        ScrunError: Something may still exist; the record stays.
    """
    try:
        record = read_record(directory)
    except ScrunError:
        record = Record(id=os.path.basename(directory))  # its supervisor died before writing one
    environment = dict(os.environ)
    if record.holds_job and (deleting or not record.until_delete):
        _check_job(record, directory)
        if not await in_thread(lives, os.path.dirname(directory), record.job_id):
            settings = await look("the settings", settings_of, record, environment)
            engine = await engines.choose(settings, environment)
            if deleter is not None:
                own = ChildEnv(environment)
                await engine.release_for(record.job_id, own, directory, deleter)
            else:
                await engine.release(record.job_id, ChildEnv(environment), directory)
        record = _note(directory, record, owns_job=False, until_delete=False)
    if record.stager or record.moved or record.staged:
        settings = await look("the settings", settings_of, record, environment)
        await stagers.undo(Leftover(record, directory, settings, ChildEnv(environment)))
        record = _note(directory, record, stager="", moved=None, staged="")
    return record


async def release(directory: str, engines: Engines, stagers: Stagers, socket: str) -> None:
    """Release all that a container still has; the caller holds its lock.

    Its record is kept, unless its `run` would have deleted it, and ended with it.

    Raises:
        ScrunError: Something may still exist.
        OSError: The record cannot be read.
    """
    _check(directory)
    await _write_end(directory)
    record = await undo(directory, engines, stagers, deleting=_goes_with_run(directory))
    if record.goes_with_run:
        await in_thread(remove_record, directory, socket)


async def _write_end(directory: str) -> None:
    """Write the container's end for the site's audit, if nobody has noted that it is there."""
    with contextlib.suppress(ScrunError, OSError):
        record = read_record(directory)
        if record.audit:
            if why := await write_end(record):
                log.warning("container %s: %s", record.id, why)
            _note(directory, record, audit="")


def _goes_with_run(directory: str) -> bool:
    with contextlib.suppress(ScrunError):
        return read_record(directory).goes_with_run
    return False


def own_orphan(directory: str) -> int | None:
    """Take the lock of a record that nobody works on, if it is free.

    Returns:
        A descriptor that holds it; None if somebody else does.

    Raises:
        OSError: The record is gone, or cannot be locked.
    """
    return own(directory, before=partial(_note_owner, directory))


def _note_owner(directory: str) -> None:
    """Note that we clean up, and that it has stopped, before its lock is held.

    Else it would look like one that is about to be adopted, whose lock is held, too.
    """
    with contextlib.suppress(ScrunError, OSError):
        record = read_record(directory)
        gone = of_the_lost(record)
        _note(directory, record, status="stopped", annotations=gone, supervisor=myself())


def lives(root: str, job_id: str, *, until_given_back: bool = False) -> bool:
    """Tell whether a container uses a job, in a supervisor or on its way to one.

    The containers of a pod have one job, and not all of them may have been adopted. One that is
    being cleaned up is stopped.

    Args:
        until_given_back: Whether it counts as well when somebody is giving the job back: who
            cancels it then can make salloc hang (docs/decisions/salloc-and-signals.md).
    """
    for name in filter(is_id, os.listdir(root)):
        directory = os.path.join(root, name)
        with contextlib.suppress(ScrunError, OSError):
            if has_record(directory) and is_held(directory):
                record = read_record(directory)
                is_used = record.status != "stopped" or (until_given_back and record.holds_job)
                if record.job_id == job_id and is_used:
                    return True
    return False


def _note(directory: str, record: Record, **changes: object) -> Record:
    record = msgspec.structs.replace(record, **changes)
    with contextlib.suppress(OSError):  # a full disk must not prevent a release
        write_record(directory, record)
    return record


def _check_job(record: Record, directory: str) -> None:
    """Check a job id: scancel could take other text for an option, or for many jobs.

    Raises:
        StateError: It is not a job id.
    """
    if not re.fullmatch("[0-9]{1,10}", record.job_id) or not is_type(f"engine/{record.engine}"):
        raise StateError(
            f"{directory}/state.json: {record.job_id!r} is not a job of {record.engine!r}: the "
            "record is damaged, or another scrun's; remove its directory when the job has ended"
        )


def _check(directory: str) -> None:
    """Check that a directory is a record before everything below it is removed.

    Raises:
        StateError: It is not: the root directory may contain other directories, too.
    """
    if not os.path.islink(os.path.join(directory, "supervisor")):
        raise StateError(
            f"{directory} is not a container's record: it has no link `supervisor`; if it is not "
            "needed, remove it yourself"
        )


def settings_of(record: Record, environment: dict[str, str]) -> Settings:
    """Read the settings again, with those that the record keeps."""
    options = {"engine": record.engine} if record.engine else {}
    if conf := record.engine_settings.get("slurm_conf"):
        options["slurm.conf"] = conf
    # the file that its `create` named: an engine's `delete` does not repeat it
    file = record.engine_settings.get("config_file")
    own = {name: text for name, text in environment.items() if name != "SCRUN_CONFIG"}
    known = file if file and os.path.exists(file) else None
    return merge(load(own, known), options=options, env=own)
