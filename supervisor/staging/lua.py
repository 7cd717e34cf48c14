"""The plugin stage/lua: a site's scrun.lua stages bundles."""

import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

import msgspec
import trio

from scrun.core.errors import EngineError, PluginUnavailable
from scrun.model.record import Moved
from scrun.settings.file.load import Settings
from scrun.settings.script import find_script
from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.contracts.stager import Leftover, Submission
from scrun.supervisor.log.files import open_file
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.staging import builtin
from scrun.supervisor.staging.scripted import Scripted, scripted, stage_out

plugin_type = "stage/lua"
plugin_name = "The site's scrun.lua"
plugin_version = "1.0.0"


def configure(settings: Settings, environment: Mapping[str, str]) -> str:
    """Find the script, for any engine.

    Raises:
        PluginUnavailable: There is no script.
        SettingsError: The script is missing, or not trusted.
    """
    script = find_script(msgspec.structs.replace(settings, stager="lua"), engine="")
    if script is None:
        raise PluginUnavailable(
            "stager lua: there is no scrun.lua; name one by `script` in the section [lua] of "
            "scrun.toml"
        )
    return script


def stager(configuration: str, submission: Submission) -> AbstractAsyncContextManager[Scripted]:
    """Provide the stager; see `contracts.plugin.StagePlugin`."""
    return scripted(configuration, submission)


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
