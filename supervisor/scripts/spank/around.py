"""Provides the plugin stack of a container."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from scrun.core.errors import SettingsError
from scrun.oci.config import Bundle
from scrun.settings.file.load import Settings
from scrun.settings.slurm_conf import find_slurm_conf, slurm_user
from scrun.settings.spank.plugstack import (
    StackScript,
    find_plugstack,
    find_scripts,
    read_given,
    read_plugstack,
)
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.contracts.engine import Engine, JobRequest
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.threads import look
from scrun.supervisor.scripts.spank.stack import Stack

Plugstack = tuple[str, Sequence[StackScript]]
"""A plugstack.conf, or "", and its scripts."""


@asynccontextmanager
async def plugin_stack(
    asked: CreateRequest,
    bundle: Bundle,
    engine: Engine,
    request: JobRequest,
    plugstack: Plugstack,
) -> AsyncIterator[Stack]:
    """Call the scripts of plugstack.conf around the allocation; a SpankError ends it.

    `plugstack`: what `find` has returned.
    """
    (source, found), settings = plugstack, asked.settings
    if request.task and settings.spank.plugstack is None:
        found = ()  # Slurm has called its plugins for the task
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
    # imported here: most sites have no scripts, and this takes 2 ms of a supervisor's start
    from scrun.supervisor.scripts.spank.items import JobFacts
    from scrun.supervisor.scripts.spank.script_stack import ScriptStack
    from scrun.supervisor.scripts.spank.scripts import Native, Scripts, loaded_by_slurm

    native: Native = frozenset()
    if engine.name == "slurm" and settings.spank.plugstack is None:
        native = await look("slurm.conf", loaded_by_slurm, found, settings)
    target = await engine.target(request.child_env)
    is_node = not target.elsewhere
    facts = JobFacts(target.slurm, target.uid, target.gid, tuple(os.getgroups()))
    async with unwrapped() as nursery:
        scripts = Scripts(
            source, found, settings.lua, settings.staging.timeout, request.child_env,
            asked.directory, request.journal, nursery, facts,
        )  # fmt: skip
        stack = ScriptStack(request, scripts, bundle, native, is_node=is_node)
        try:
            await stack.begin()
            yield stack
        finally:
            with trio.CancelScope(shield=True):
                await stack.end()


def find(settings: Settings) -> Plugstack:
    """Find the plugstack.conf, or "", and its scripts. Call this in a thread."""
    if (path := find_plugstack(settings)) is None:
        return "", ()
    try:
        return path, find_scripts(read_plugstack(path))
    except SettingsError:  # it may be SlurmUser's, but to know that takes all of slurm.conf
        trusted = slurm_user(find_slurm_conf(settings))
        return path, find_scripts(read_plugstack(path, trusted), trusted)
