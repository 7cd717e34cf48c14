"""What is left of containers whose supervisor died: records, and perhaps a job."""

import os

import trio

from scrun.errors import ScrunError
from scrun.record import Record, read_record
from scrun.settings.load import load, merge
from supervisor.engines.choose import Engines
from supervisor.processes import Setting
from supervisor.records import remove_record
from supervisor.staging.place import stage_out


async def delete(directory: str, engines: Engines) -> bool:
    """Finish the business of a container that nobody serves: job, staged bundle, record.

    Args:
        directory: The record.
        engines: To release the job with.

    Returns:
        Whether there was such a record.

    Raises:
        EngineError: The job may still be there; the record stays.
    """
    if not await trio.Path(directory).is_dir():
        return False
    try:
        record = read_record(directory)
    except ScrunError:
        record = Record(id=os.path.basename(directory))  # it died before it wrote one
    if record.job_id and record.owns_job:
        options = {"engine": record.engine}
        if conf := record.engine_settings.get("slurm_conf"):
            options["slurm.conf"] = conf
        environment = dict(os.environ)
        settings = merge(load(environment), options=options, env=environment)
        engine = engines.choose(settings, environment)
        await engine.release(record.job_id, Setting(environment), directory)
    if record.staged:
        await trio.to_thread.run_sync(stage_out, record.staged)
    await trio.to_thread.run_sync(remove_record, directory)
    return True
