"""The plugin stack of a container: which scripts there are, and for how long."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from scrun.oci.config import Bundle
from scrun.settings.file.load import Settings
from scrun.settings.slurm_conf import find_slurm_conf, slurm_user
from scrun.settings.spank.plugin_options import read_given
from scrun.settings.spank.plugstack import (
    StackScript,
    find_plugstack,
    find_scripts,
    read_plugstack,
)
from scrun.supervisor.contracts.engine import Engine, JobRequest
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.threads import look
from scrun.supervisor.scripts.spank.stack import Stack


@asynccontextmanager
async def plugin_stack(
    settings: Settings, directory: str, bundle: Bundle, engine: Engine, request: JobRequest
) -> AsyncIterator[Stack]:
    """Have the scripts called that plugstack.conf names, around the allocation.

    Args:
        settings: The container's.
        directory: `create`'s working directory.
        bundle: The submitted bundle.
        engine: Where it will run.
        request: What the job would be asked for with.

    Raises:
        SettingsError: plugstack.conf is wrong.
        SpankError: A required script has failed; or an option that was given is refused.
    """
    source, found = await look("plugstack.conf", find, settings)
    if not found:
        given = read_given(
            (),
            request.child_env.environment,
            bundle.config.annotations,
            must_be_known=engine.name == "slurm",  # elsewhere requests are ignored as well
        )
        for note in given.notes:
            request.journal.write("info", note)
        yield Stack(request)
        return
    # only here: most sites have no scripts, and a supervisor's start would be 2 ms longer
    from scrun.supervisor.scripts.spank.native import Native, loaded_by_slurm
    from scrun.supervisor.scripts.spank.phases import Facts
    from scrun.supervisor.scripts.spank.script_stack import ScriptStack
    from scrun.supervisor.scripts.spank.scripts import Scripts

    native: Native = frozenset()
    if engine.name == "slurm" and settings.spank.plugstack is None:
        native = await look("slurm.conf", loaded_by_slurm, found, settings)
    target = await engine.target(request.child_env)
    is_node = not target.elsewhere
    facts = Facts(target.slurm, target.uid, target.gid, tuple(os.getgroups()))
    async with unwrapped() as nursery:
        scripts = Scripts(
            source, found, settings.lua, settings.staging.timeout, request.child_env, directory,
            request.journal, nursery, facts,
        )  # fmt: skip
        stack = ScriptStack(request, scripts, bundle, native, is_node=is_node)
        try:
            await stack.begin()
            yield stack
        finally:
            with trio.CancelScope(shield=True):
                await stack.end()


def find(settings: Settings) -> tuple[str, Sequence[StackScript]]:
    """Find the plugstack.conf and the scripts; in a thread.

    Returns:
        The file, and the scripts: none if there is no file.

    Raises:
        SettingsError: A file is wrong, or not to be trusted.
    """
    if (path := find_plugstack(settings)) is None:
        return "", ()
    trusted = slurm_user(find_slurm_conf(settings))
    return path, find_scripts(read_plugstack(path, trusted), trusted)
