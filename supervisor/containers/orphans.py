"""What is left of containers whose supervisor died: records, and perhaps a job."""

import contextlib
import os
import re

import msgspec

from scrun.core.errors import ScrunError, StateError
from scrun.core.paths import has_record
from scrun.model.record import Record, of_the_lost, read_record, write_record
from scrun.settings.file.load import Settings, load, merge
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.containers.records import remove_record
from scrun.supervisor.contracts.stager import Leftover
from scrun.supervisor.core.identity import myself
from scrun.supervisor.core.ownership import succeed
from scrun.supervisor.core.threads import in_thread, look
from scrun.supervisor.plugins.choose_engine import Engines
from scrun.supervisor.plugins.choose_stager import Stagers
from scrun.supervisor.plugins.installed import is_type


async def delete(directory: str, engines: Engines, stagers: Stagers, socket: str) -> bool:
    """Finish the business of a container that nobody serves: job, staged bundle, record.

    Args:
        directory: The record.
        engines: To release the job with.
        stagers: To clean up what was staged.
        socket: The name of the supervisor that does so.

    Returns:
        Whether there was such a record.

    Raises:
        EngineError: The job may still be there; the record stays.
        StateError: It is no record: this removes nothing but those. Or its supervisor is not dead,
            or another one undoes it already.
    """
    if not has_record(directory):
        return False
    _check(directory)
    try:
        lock = await succeed(directory)
    except FileNotFoundError:  # the other one has removed it
        return True
    try:
        await undo(directory, engines, stagers, deleting=True)
        await in_thread(remove_record, directory, socket)
    finally:
        os.close(lock)
    return True


async def undo(
    directory: str, engines: Engines, stagers: Stagers, *, deleting: bool = False
) -> Record:
    """Give back what is left of a container; its lock is ours.

    What is given back is put down at once: whoever is killed here leaves the rest to the next one.

    Args:
        directory: The record.
        engines: To release the job with.
        stagers: To clean up what was staged.
        deleting: Whether it is deleted: what waits for that is undone, too.

    Returns:
        The record, as it is now.

    Raises:
        ScrunError: Something may still be there; the record stays.
    """
    try:
        record = read_record(directory)
    except ScrunError:
        record = Record(id=os.path.basename(directory))  # it died before it wrote one
    environment = dict(os.environ)
    if record.holds_job and (deleting or not record.until_delete):
        _check_job(record, directory)
        settings = await look("the settings", settings_of, record, environment)
        engine = await engines.choose(settings, environment)
        await engine.release(record.job_id, ChildEnv(environment), directory)
        record = _note(directory, record, owns_job=False, until_delete=False)
    if record.stager or record.moved or record.staged:
        settings = await look("the settings", settings_of, record, environment)
        await stagers.undo(Leftover(record, directory, settings, ChildEnv(environment)))
        record = _note(directory, record, stager="", moved=None, staged="")
    return record


async def tidy(directory: str, engines: Engines, stagers: Stagers) -> None:
    """Give back what a dead supervisor's container has left; its lock is ours, the record stays.

    Raises:
        ScrunError: Something may still be there.
        OSError: It is no record that could be tidied.
    """
    _check(directory)
    _note(directory, read_record(directory), supervisor=myself())
    record = await undo(directory, engines, stagers)
    _note(directory, record, status="stopped", annotations=of_the_lost(record))


def _note(directory: str, record: Record, **changes: object) -> Record:
    record = msgspec.structs.replace(record, **changes)
    with contextlib.suppress(OSError):  # a full disk keeps nobody from giving things back
        write_record(directory, record)
    return record


def _check_job(record: Record, directory: str) -> None:
    """Refuse to release what is no job's id: scancel would take it for an option, or for many.

    Raises:
        StateError: It is none.
    """
    if not re.fullmatch("[0-9]{1,10}", record.job_id) or not is_type(f"engine/{record.engine}"):
        raise StateError(
            f"{directory}/state.json: {record.engine!r} has no job {record.job_id!r}: the record "
            "is damaged, or another scrun's; remove its directory when that job is over"
        )


def _check(directory: str) -> None:
    """Hold that a directory is one of ours, before everything below it is removed.

    Raises:
        StateError: It is not: the root directory may be any, and have others in it.
    """
    if not os.path.islink(os.path.join(directory, "supervisor")):
        raise StateError(
            f"{directory}: has no link `supervisor`, so it is no container's record; if it is not "
            "needed, remove it yourself"
        )


def settings_of(record: Record, environment: dict[str, str]) -> Settings:
    """Read the settings again, with what the record has kept of them."""
    options = {"engine": record.engine} if record.engine else {}
    if conf := record.engine_settings.get("slurm_conf"):
        options["slurm.conf"] = conf
    # the file that its `create` named: an engine's `delete` does not name it again
    file = record.engine_settings.get("config_file")
    own = {name: text for name, text in environment.items() if name != "SCRUN_CONFIG"}
    known = file if file and os.path.exists(file) else None
    return merge(load(own, known), options=options, env=own)
