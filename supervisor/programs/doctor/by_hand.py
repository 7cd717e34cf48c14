"""Calls the commands of an oci.conf on this machine, as Slurm's containers guide does by hand.

Slurm's documentation, "Testing OCI runtime outside of Slurm": create, start, kill and delete have
to work for a user before they can work in a job.
"""

import json
import os
import pwd
import signal
from collections.abc import Sequence

import msgspec
import trio

from scrun.core.errors import ScrunError
from scrun.settings.oci_conf.node_runtime import node_runtime
from scrun.settings.oci_conf.parse import OciConf, parse_oci_conf
from scrun.settings.oci_conf.shell_commands import program_of
from scrun.settings.slurm_conf import read_conf
from scrun.supervisor.children.processes import Child, child, output_of
from scrun.supervisor.contracts.engine import Step
from scrun.supervisor.engines.local.commands import RuntimeContainer
from scrun.supervisor.engines.local.site_commands import OciConfCommands
from scrun.supervisor.engines.local.target import local_target
from scrun.supervisor.programs.doctor.call import Check, DoctorCall, Reporter
from scrun.supervisor.programs.doctor.cluster import oci_conf_path
from scrun.supervisor.programs.doctor.containers import last_line, own_root, write_bundle
from scrun.supervisor.programs.doctor.findings import Finding
from scrun.supervisor.staging.staged_bundle import stage_in

NAME = "oci.conf by hand"
_STARTS, _ENDS = 10.0, 10.0
_AGAIN = 0.05
_SURE = 0.5  # seconds that a container without RunTimeQuery has to run
_REMEDY = "check its commands with `scrun oci-conf render`, and correct them"


class _Failed(Exception):
    """A step failed; the message has the step and the reason."""


async def _by_hand(call: DoctorCall, report: Reporter) -> None:
    path = oci_conf_path(call) if call.by_slurm else call.settings.local.oci_conf
    if path is None:
        report(Finding(NAME, "ok", "not needed: no oci.conf"))
        return
    if call.settings_error or not call.root:
        report(Finding(NAME, "warn", "not tried", "correct the failures above"))
        return
    try:
        text = await trio.to_thread.run_sync(read_conf, path, abandon_on_cancel=True)
        conf = parse_oci_conf(text, path)
        if program := _missing(call, conf):
            # a submit host need not have it
            text = f"{program} is not on this machine"
            found = Finding(NAME, "fail", text, f"install it, or correct {path}")
            report(Finding(NAME, "ok", f"not tried: {text}") if call.by_slurm else found)
            return
        async with own_root(call) as root:
            report(Finding(NAME, "ok", await _CommandTrial(call, conf, root).run()))
    except (ScrunError, _Failed) as error:
        # nodes may have other cgroups and another root directory than this machine
        report(Finding(NAME, "warn" if call.by_slurm else "fail", str(error), _REMEDY))


def _missing(call: DoctorCall, conf: OciConf) -> str | None:
    programs = {program_of(pattern) for pattern in conf.commands.values()} - {None}
    return next((name for name in programs if name and call.which(name) is None), None)


class _CommandTrial:
    """A container of this machine's `sleep`, from its creation to its removal."""

    def __init__(self, call: DoctorCall, conf: OciConf, root: str) -> None:
        uid = os.geteuid()
        patterns = node_runtime(conf, call.settings.runtime)
        user, node = pwd.getpwuid(uid).pw_name, os.uname().nodename
        self._commands = OciConfCommands(conf, node, user, uid, patterns)
        self._conf = conf
        self._root = root
        self._errors = os.path.join(root, "@errors")
        self._container = RuntimeContainer(root, "0", call.directory)
        self._child_env = self._commands.child_env(call.child_env)

    async def run(self) -> str:
        """Run the container; return what worked.

        Raises:
            _Failed: A step failed.
            ScrunError: The container could not be prepared.
        """
        self._container = await trio.to_thread.run_sync(self._prepare)
        fd = os.open(self._errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            await self._live(fd)
            if self._commands.is_container:
                await self._must("RunTimeDelete", self._commands.delete(self._container), fd)
        except BaseException:
            with trio.move_on_after(_ENDS, shield=True):
                async with child(
                    self._commands.delete(self._container), self._child_env
                ) as delete:
                    await delete.wait()
            raise
        finally:
            os.close(fd)
        return f"{', '.join(self._conf.commands)}: each works on this machine"

    def _prepare(self) -> RuntimeContainer:
        """Stage the bundle, as the local engine does."""
        commands = self._commands
        bundle = write_bundle(self._root, "sleep", "60")
        with open(os.path.join(bundle, "config.json"), "rb") as file:
            config = json.load(file)
        target = local_target(uid=os.geteuid(), gid=os.getegid(), maps_root=commands.maps_root)
        target = msgspec.structs.replace(target, link_rootfs=commands.link_rootfs)
        staged = stage_in(config, bundle, os.path.join(self._root, "@staged"), target)
        arguments = tuple(config["process"]["args"])
        step = Step(staged.bundle, arguments, (0, 1, 2), False, "", True, lambda: None)
        return commands.prepare(self._container, step, {})

    async def _live(self, fd: int) -> None:
        commands, log = self._commands, os.path.join(self._root, "@log")
        async with child(
            commands.run(self._container, log),
            self._child_env,
            stdout=fd,
            stderr=fd,
            whole_group=not commands.is_container,
            directory=commands.working_directory(self._container),
        ) as running:
            if not commands.is_container:
                self._container = msgspec.structs.replace(self._container, pid=running.pid)
            await self._until_it_runs(running, log)
            await self._must("RunTimeKill", commands.kill(self._container, signal.SIGKILL), fd)
            if not await _ends(running, _ENDS):
                raise _Failed(f"it did not end within {_ENDS:g} s of RunTimeKill")
        self._container = msgspec.structs.replace(self._container, pid=0)

    async def _until_it_runs(self, running: Child, log: str) -> None:
        """Wait until RunTimeQuery says `running`; without one, until it ran for a moment.

        Raises:
            _Failed: The container does not run.
        """
        query = self._commands.state(self._container)
        with trio.move_on_after(_STARTS):
            while not await _ends(running, _AGAIN if query else _SURE):
                if not query or await self._status(query) == "running":
                    return
        if not running.ended:
            raise _Failed(f"RunTimeQuery does not say `running` within {_STARTS:g} s")
        how = "RunTimeRun" if self._conf.mode == "run" else "RunTimeCreate, RunTimeStart"
        raise _Failed(f"{how}: {last_line(self._errors) or last_line(log) or 'it ended at once'}")

    async def _status(self, query: str) -> str:
        text = await output_of(["/bin/sh", "-c", query], self._child_env)
        try:
            return str(json.loads(text)["status"])
        except (ValueError, LookupError, TypeError, RecursionError):
            return ""

    async def _must(self, key: str, command: Sequence[str], fd: int) -> None:
        async with child(command, self._child_env, stdout=fd, stderr=fd) as called:
            status = await called.wait()
        if status:
            raise _Failed(f"{key}: {last_line(self._errors) or f'status {status}'}")


async def _ends(running: Child, seconds: float) -> bool:
    """Wait for the end of a child, for some seconds at most; return whether it ended."""
    with trio.move_on_after(seconds):
        await running.wait()
    return running.ended


CHECK = Check((NAME,), _by_hand, deadline=60)
