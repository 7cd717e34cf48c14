"""What is left of containers whose supervisor died: records, and perhaps a job."""

import os
import re

from scrun.errors import ScrunError, StateError
from scrun.paths import has_record
from scrun.record import Record, read_record
from scrun.settings.load import Settings, load, merge
from supervisor.engines.choose import Engines
from supervisor.ownership import succeed
from supervisor.plugins.installed import is_type
from supervisor.processes import Setting
from supervisor.records import remove_record
from supervisor.staging.base import Left
from supervisor.staging.choose import Stagers
from supervisor.threads import in_thread, look


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
        await undo(directory, engines, stagers)
        await in_thread(remove_record, directory, socket)
    finally:
        os.close(lock)
    return True


async def undo(directory: str, engines: Engines, stagers: Stagers) -> None:
    """Give back what is left of a container; its lock is ours.

    Raises:
        ScrunError: Something may still be there; the record stays.
    """
    try:
        record = read_record(directory)
    except ScrunError:
        record = Record(id=os.path.basename(directory))  # it died before it wrote one
    environment = dict(os.environ)
    if record.job_id and record.owns_job:
        _check_job(record, directory)
        settings = await look("the settings", _settings, record, environment)
        engine = await engines.choose(settings, environment)
        await engine.release(record.job_id, Setting(environment), directory)
    if record.stager or record.moved or record.staged:
        settings = await look("the settings", _settings, record, environment)
        await stagers.undo(Left(record, directory, settings, Setting(environment)))


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


def _settings(record: Record, environment: dict[str, str]) -> Settings:
    """Read the settings again, with what the record has kept of them."""
    options = {"engine": record.engine} if record.engine else {}
    if conf := record.engine_settings.get("slurm_conf"):
        options["slurm.conf"] = conf
    # the file that its `create` named: an engine's `delete` does not name it again
    file = record.engine_settings.get("config_file")
    own = {name: text for name, text in environment.items() if name != "SCRUN_CONFIG"}
    known = file if file and os.path.exists(file) else None
    return merge(load(own, known), options=options, env=own)
