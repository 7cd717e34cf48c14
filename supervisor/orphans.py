"""What is left of containers whose supervisor died: records, and perhaps a job."""

import os
import re

import trio

from scrun.errors import EngineError, ScrunError, StateError
from scrun.paths import has_record
from scrun.record import Moved, Record, read_record
from scrun.settings.load import Settings, load, merge
from supervisor.engines.base import Request
from supervisor.engines.choose import ENGINES, Engines
from supervisor.engines.slurm.tools import outer_id
from supervisor.journal import Journal
from supervisor.processes import Setting
from supervisor.records import remove_record
from supervisor.staging import scripted
from supervisor.staging.place import not_ours, return_changes, stage_out


async def delete(directory: str, engines: Engines, socket: str) -> bool:
    """Finish the business of a container that nobody serves: job, staged bundle, record.

    Args:
        directory: The record.
        engines: To release the job with.
        socket: The name of the supervisor that does so.

    Returns:
        Whether there was such a record.

    Raises:
        EngineError: The job may still be there; the record stays.
        StateError: It is no record: this removes nothing but those.
    """
    if not has_record(directory):
        return False
    _check(directory)
    try:
        record = read_record(directory)
    except ScrunError:
        record = Record(id=os.path.basename(directory))  # it died before it wrote one
    environment = dict(os.environ)
    if record.job_id and record.owns_job:
        _check_job(record, directory)
        engine = engines.choose(_settings(record, environment), environment)
        await engine.release(record.job_id, Setting(environment), directory)
    if record.moved:
        settings = _settings(record, environment)
        await _stage_out(record, record.moved, settings, environment, directory)
    if record.staged:
        await trio.to_thread.run_sync(_clean, record)
    await trio.to_thread.run_sync(remove_record, directory, socket)
    return True


def _check_job(record: Record, directory: str) -> None:
    """Refuse to release what is no job's id: scancel would take it for an option, or for many.

    Raises:
        StateError: It is none.
    """
    if not re.fullmatch("[0-9]{1,10}", record.job_id) or record.engine not in ENGINES:
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


def _clean(record: Record) -> None:
    """Remove a staged bundle, after what the container has changed in a copy is brought back."""
    try:
        if not_ours(record.staged):  # then it was not staged there
            return
    except FileNotFoundError:
        return
    copied = os.path.join(record.staged, "rootfs")
    complete = os.path.lexists(os.path.join(record.staged, "config.json"))
    if complete and os.path.isdir(copied) and not os.path.islink(copied) and record.rootfs:
        original = os.path.realpath(record.rootfs)
        return_changes(record.staged, original, rootless=outer_id("uid") != 0)
    stage_out(record.staged)


def _settings(record: Record, environment: dict[str, str]) -> Settings:
    """Read the settings again, with what the record has kept of them."""
    options = {"engine": record.engine}
    if conf := record.engine_settings.get("slurm_conf"):
        options["slurm.conf"] = conf
    return merge(load(environment), options=options, env=environment)


async def _stage_out(
    record: Record, moved: Moved, settings: Settings, environment: dict[str, str], directory: str
) -> None:
    """Have the script fetch what the container wrote, and clean up. The job is gone by now."""

    async def remote(script: str, output: int) -> int:
        raise EngineError(f"job {record.job_id} is gone")

    def ignore(*_: object) -> None:
        pass

    journal = Journal(os.path.join(directory, "log"), settings.log, record.id)
    request = Request(
        container=record.id,
        setting=Setting(environment),
        directory=record.bundle,
        record=directory,
        journal=journal,
        known=ignore,
        lost=ignore,
    )
    variables = {"SLURM_JOB_ID": record.job_id}
    try:
        await scripted.stage_out(
            moved, record.job_id, variables, settings, request, remote, trio.Event()
        )
    finally:
        journal.close()
