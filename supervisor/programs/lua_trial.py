"""scrun lua check and scrun lua run: try a site's script without a container.

This does all that `create` would do for the script, with the same code, and the script really
acts. But the job exists only by name, and nothing runs in it. The script's messages go to standard
error, the results to standard output.
"""

import difflib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import trio

from scrun.cli.parse import Parsed
from scrun.core.errors import BundleError
from scrun.core.output import write
from scrun.oci.config import Bundle, Config, load_bundle, read_config
from scrun.oci.lookup import NotFound, find_program
from scrun.settings.file.load import LEVELS, Level, Log
from scrun.settings.oci_conf.commands import NodeRuntime
from scrun.settings.oci_conf.parse import OciConf
from scrun.settings.script import find_script, site_of
from scrun.settings.slurm.request_sources import read_requests
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.containers.caller import stderr_lines
from scrun.supervisor.contracts.create_request import CreateRequest, own_create_request
from scrun.supervisor.contracts.engine import Job, JobRequest
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.contracts.stager import Submission
from scrun.supervisor.engines.local.engine import LocalEngine
from scrun.supervisor.engines.local.site_commands import OciConfCommands
from scrun.supervisor.log.journal import Journal, Shown
from scrun.supervisor.programs.spank_scripts import check_spank, is_spank
from scrun.supervisor.scripts.host import loaded
from scrun.supervisor.staging.scripted import Scripted, stager
from scrun.supervisor.staging.variables import script_variables

_IN = "slurm_scrun_stage_in"
_OUT = "slurm_scrun_stage_out"


def run(parsed: Parsed, argv: list[str]) -> int:
    action, script = parsed.operands
    order = _order(argv, os.path.abspath(script))
    trio.run(_try, order, action, parsed.count("stage-out") > 0)
    return 0


async def _try(order: CreateRequest, action: str, stage_out: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="scrun-lua-", ignore_cleanup_errors=True) as root:
        record = os.path.join(root, order.id)
        os.mkdir(record, 0o700)
        with closing(_journal(record, order)) as journal:
            if action == "check":
                await _check(order, journal)
            else:
                await _run(order, root, journal, stage_out=stage_out)


def _order(argv: list[str], script: str) -> CreateRequest:
    """Return the request of a `create` with these options and this script."""
    order = own_create_request(argv, "lua")
    os.umask(0o077)
    settings = order.settings
    lua = msgspec.structs.replace(settings.lua, script=script)
    return msgspec.structs.replace(
        order,
        id=f"trial-{os.getpid()}",
        settings=msgspec.structs.replace(settings, lua=lua, stager="lua"),
    )


def _journal(record: str, order: CreateRequest) -> Journal:
    """Return a journal that writes to standard error: at least `info`, more with -v or --debug."""
    level = max("info", order.shown.stderr, key=LEVELS.index)
    journal = Journal(os.path.join(record, "log"), Log(), order.id, Shown(stderr=level))

    def show(level: Level, text: str) -> None:
        for line in stderr_lines(level, text):
            os.write(2, f"{line}\n".encode(errors="backslashreplace"))

    journal.show_to(show)
    return journal


async def _find(order: CreateRequest) -> str:
    """Find the script, as `create` does: it has to exist, and must not be writable by others."""
    await trio.to_thread.run_sync(lambda: os.stat(order.settings.lua.script or ""))
    found = await trio.to_thread.run_sync(find_script, order.settings, "local")
    assert found is not None
    return found


async def _check(order: CreateRequest, journal: Journal) -> None:
    """Load the script, and print which functions it has."""
    settings = order.settings
    path = await _find(order)
    if await trio.to_thread.run_sync(is_spank, path):
        await check_spank(path, settings, order.child_env, order.directory, journal)
        return
    site = await trio.to_thread.run_sync(site_of, settings)
    async with loaded(
        path, settings.lua, order.child_env, order.directory, journal, site, complete=False
    ) as script:
        pass
    _say(f"{path}: loaded by Lua {settings.lua.version}")
    for name in (_IN, _OUT):
        _say(f"{name}: {'missing' if name in script.missing else 'defined'}")
    script.check_complete()


async def _run(order: CreateRequest, root: str, journal: Journal, *, stage_out: bool) -> None:
    bundle = await _bundle(order)
    record = os.path.join(root, order.id)
    engine = _Machine(root, order.settings.local, order.settings.runtime)
    with trio.CancelScope() as scope:
        request = JobRequest(
            container=order.id,
            child_env=order.child_env,
            directory=order.directory,
            record=record,
            journal=journal,
            on_job_id=lambda job_id, owned: None,
            on_lost=lambda ending: scope.cancel(),
            config_requests=read_requests(bundle.config.annotations, bundle.config.process.env),
        )
        path = await _find(order)
        submission = Submission(bundle, order.settings, engine, request, trio.Event())
        async with (
            stager(path, submission) as loaded,
            engine.allocate(request) as job,
        ):
            variables = script_variables(order, os.getpid(), bundle, record, job.environment)
            await _stage(loaded, job, variables, bundle, record, stage_out=stage_out)


async def _bundle(order: CreateRequest) -> Bundle:
    bundle = await trio.to_thread.run_sync(load_bundle, order.bundle, order.config_file)
    program = await trio.to_thread.run_sync(find_program, bundle)
    if isinstance(program, NotFound):
        raise BundleError(program.message)
    return bundle


async def _stage(
    stager: Scripted,
    job: Job,
    variables: dict[str, str],
    bundle: Bundle,
    record: str,
    *,
    stage_out: bool,
) -> None:
    if stage_out:
        async with stager.staged(job, variables) as staged:
            await _describe(staged, bundle)
        _say("", f"{_OUT}: done")
        return
    # not `staged`, which always stages out at the end
    staged = await stager.describe(await stager.stage_in(job, variables))
    await _describe(staged, bundle)
    _say("", *_left(staged, bundle, record))


async def _describe(staged: Staged, bundle: Bundle) -> None:
    """Print what the step would get, and what the script changed."""
    name = os.path.join(staged.bundle, "config.json")
    raw, config = await trio.to_thread.run_sync(_staged_config, name, bundle)
    _say(
        f"bundle: {staged.bundle}",
        f"root file system: {staged.rootfs}",
        f"process.args: {json.dumps(staged.arguments, ensure_ascii=False)}",
        f"process.cwd: {config.process.cwd}",
        f"terminal: {'yes' if bundle.config.process.terminal else 'no'}",
    )
    moved = staged.moved
    assert moved is not None
    for function, path, original in (
        ("set_bundle_path", moved.bundle, moved.original_bundle),
        ("set_root_path", moved.root, moved.original_root),
    ):
        _say(f"slurm.{function}: {path if path != original else 'the submitted one'}")
    changes = list(
        difflib.unified_diff(
            _pretty(bundle.raw), _pretty(raw), bundle.config_file, name, lineterm=""
        )
    )
    _say("", *(changes or ["config.json: not changed"]))


def _staged_config(name: str, bundle: Bundle) -> tuple[dict[str, Any], Config]:
    """Read the config.json from the script, or the submitted one if that is not visible here."""
    if os.path.exists(name):
        return read_config(name)
    _say(f"{name}: does not exist, at least not on this machine")
    return bundle.raw, bundle.config


def _left(staged: Staged, bundle: Bundle, record: str) -> Iterator[str]:
    """Describe where the staged files are, as nothing removes them."""
    if staged.bundle == bundle.path and staged.rootfs == bundle.rootfs:
        yield "staged files: none, the submitted bundle is used unchanged"
        return
    for what, path, original in (
        ("bundle", staged.bundle, bundle.path),
        ("root file system", staged.rootfs, bundle.rootfs),
    ):
        if os.path.normpath(path).startswith(record + os.sep):
            yield f"staged {what}: removed with the spool directory"
        elif os.path.normpath(path) != os.path.normpath(original):
            yield f"staged {what}: left in {path}"


def _pretty(config: dict[str, Any]) -> list[str]:
    return json.dumps(config, indent=2, ensure_ascii=False).splitlines()


def _say(*lines: str) -> None:
    for line in lines:
        write(f"{line}\n".encode(errors="backslashreplace"))


class _Machine(LocalEngine):
    """The local engine without a runtime, which need not be installed."""

    async def commands(self, child_env: ChildEnv) -> OciConfCommands:
        """See `LocalEngine`. No container ever runs."""
        nothing = OciConf(run_time_run="false", run_time_kill="false", run_time_delete="true")
        return OciConfCommands(nothing, os.uname().nodename, "", os.geteuid(), NodeRuntime())
