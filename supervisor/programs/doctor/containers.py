"""Trials of a container of this machine's: by scrun, here or in a job, and by an oci.conf.

scrun is called as container engines call it. The commands of an oci.conf are called as Slurm's
containers guide does by hand ("Testing OCI runtime outside of Slurm"): create, start, kill and
delete have to work for a user before they can work in a job.
"""

import contextlib
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import trio

from scrun.client.supervisors import supervisors
from scrun.core.errors import ScrunError
from scrun.core.own_directory import own_directory
from scrun.core.paths import packages
from scrun.settings.oci_conf.node_runtime import node_runtime
from scrun.settings.oci_conf.parse import OciConf, parse_oci_conf
from scrun.settings.oci_conf.shell_commands import program_of
from scrun.settings.slurm_conf import read_conf
from scrun.supervisor.children.processes import SYSTEM_PATH, Child, ChildEnv, child, output_of
from scrun.supervisor.contracts.engine import Step
from scrun.supervisor.engines.local.commands import RuntimeContainer
from scrun.supervisor.engines.local.runtimes import find_runtime
from scrun.supervisor.engines.local.site_commands import OciConfCommands
from scrun.supervisor.engines.local.target import local_target
from scrun.supervisor.programs.doctor.call import Check, DoctorCall, Done, in_thread, one, run_tool
from scrun.supervisor.programs.doctor.cluster import oci_conf_path
from scrun.supervisor.programs.doctor.findings import Finding, fail, ok, warn
from scrun.supervisor.staging.staged_bundle import stage_in

NAME = "container"
_SCRUN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from scrun.main import main; main()"
_ID = "doctor"
_LIFE = 60.0
_STARTS, _ENDS = 10.0, 10.0
_AGAIN = 0.05
_SURE = 0.5  # seconds that a container without RunTimeQuery has to run
_REMEDY = "correct the other failures; with --debug the container's log has details"
_ABOVE = "correct the failures above"


async def _runtime(call: DoctorCall) -> Finding:
    """Find the runtime of this machine. Its thread cannot be abandoned: it has children."""
    if call.by_slurm:
        return ok("not needed: containers run on the nodes")
    if call.engine is not None and call.engine.name != "local":
        return ok(f"not needed: the engine is {call.engine.name}")
    local = call.settings.local
    if local.oci_conf is not None:
        text = await trio.to_thread.run_sync(read_conf, local.oci_conf)
        parse_oci_conf(text, local.oci_conf)
        return ok(f"the commands of {local.oci_conf}")
    try:
        found = await trio.to_thread.run_sync(
            lambda: find_runtime(local.runtime, env=call.child_env.environment)
        )
    except ScrunError as error:
        return fail(str(error), "correct that, or use --engine slurm")
    text = " ".join((found.path, *found.arguments))
    text += "" if found.cgroups else ", which cannot apply limits here"
    return ok(text + "".join(f"; passed over {reason}" for reason in found.passed_over))


async def _container(call: DoctorCall) -> Finding:
    return await try_container(call, {})


async def try_container(call: DoctorCall, variables: Mapping[str, str]) -> Finding:
    """Create, start, await and delete a container, with the engine of this call.

    `variables`: variables for its `create`, besides the call's own environment.
    """
    if "settings" in call.errors or not call.root or call.engine is None:
        return fail("cannot be created", _ABOVE)
    async with own_root(call) as root:
        try:
            bundle = await trio.to_thread.run_sync(write_bundle, root, "true")
        except (OSError, subprocess.SubprocessError) as error:
            return warn(f"no bundle to try: {error}", "check whether ldd works")
        trial = _ScrunTrial(call, root, bundle, variables)
        try:
            with trio.move_on_after(_LIFE):
                return await trial.run()
            return fail(f"did not end within {_LIFE:g} s", _REMEDY)
        except TrialError as error:
            return fail(str(error), _REMEDY)
        finally:
            with trio.CancelScope(shield=True):
                await trial.clean_up()


async def _by_hand(call: DoctorCall) -> Finding:
    path = oci_conf_path(call) if call.by_slurm else call.settings.local.oci_conf
    if path is None:
        return ok("not needed: no oci.conf")
    if "settings" in call.errors or not call.root:
        return warn("not tried", _ABOVE)
    try:
        conf = parse_oci_conf(await in_thread(read_conf, path), path)
        if program := _missing(call, conf):
            text = f"{program} is not on this machine"
            if call.by_slurm:  # a submit host need not have it
                return ok(f"not tried: {text}")
            return fail(text, f"install it, or correct {path}")
        async with own_root(call) as root:
            return ok(await _CommandTrial(call, conf, root).run())
    except (ScrunError, TrialError) as error:
        # nodes may have other cgroups and another root directory than this machine
        remedy = "check its commands with `scrun oci-conf render`, and correct them"
        return (warn if call.by_slurm else fail)(str(error), remedy)


def _missing(call: DoctorCall, conf: OciConf) -> str | None:
    programs = {program_of(pattern) for pattern in conf.commands.values()} - {None}
    return next((name for name in programs if name and call.which(name) is None), None)


@contextlib.asynccontextmanager
async def own_root(call: DoctorCall) -> AsyncIterator[str]:
    """Make a directory for records in the root directory, and so on the same file system.

    No container can have its name.
    """
    await trio.to_thread.run_sync(own_directory, call.root)
    try:
        with tempfile.TemporaryDirectory(
            prefix="@doctor-", dir=call.root, ignore_cleanup_errors=True
        ) as root:
            yield root
    finally:
        if call.root_is_new:
            with contextlib.suppress(OSError):  # another check uses it, or somebody else by now
                os.rmdir(call.root)


class TrialError(Exception):
    """A step failed; the message has the step and the reason."""


class _Trial:
    """A container; what its commands write to standard error is in a file."""

    def __init__(self, root: str, directory: str, child_env: ChildEnv) -> None:
        self.root, self.directory, self.child_env = root, directory, child_env
        self._errors = os.path.join(root, "@errors")

    @contextlib.contextmanager
    def errors(self) -> Iterator[int]:
        """Open that file."""
        fd = os.open(self._errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            yield fd
        finally:
            os.close(fd)

    def last_error(self) -> str:
        """Return the last line of it, or ""."""
        return _last_line(self._errors)


class _ScrunTrial(_Trial):
    """One container by scrun, from `create` to the end of its supervisor."""

    def __init__(
        self, call: DoctorCall, root: str, bundle: str, variables: Mapping[str, str]
    ) -> None:
        environment = {**call.child_env.environment, **variables}
        super().__init__(root, call.directory, ChildEnv(environment, call.child_env.umask))
        self._bundle = bundle
        site = ["-S"] if sys.flags.no_site else []
        self._command = [sys.executable, "-I", *site, "-c", _SCRUN, packages()]
        for option in ("config-file", "engine", "stager", "slurm-conf"):
            if value := call.parsed.text(option):
                self._command.append(f"--{option}={value}")
        self._command += ["--root", root]

    async def run(self) -> Finding:
        """Run the container to its end, and judge the result.

        Raises:
            TrialError: A step failed.
        """
        pid_file = os.path.join(self.root, "@pid")
        await self._create("--bundle", self._bundle, "--pid-file", pid_file)
        pidfd = os.pidfd_open(_pid(pid_file))
        try:
            await self._must("start")
            await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)
        done = await self._must("state")
        finding = judge_state("\n".join(done.lines), self.last_error())
        await self._must("delete")
        return finding

    async def _create(self, *options: str) -> None:
        """Create it; its standard error, a file, is also that of `create`."""
        command = [*self._command, "create", *options, _ID]
        with self.errors() as fd:
            async with child(
                command, self.child_env, stderr=fd, directory=self.directory
            ) as create:
                status = await create.wait()
        if status:
            text = self.last_error() or f"exit status {status}"
            raise TrialError(f"create: {text.removeprefix('scrun: ')}")

    async def _must(self, *words: str) -> Done:
        command = [*self._command, *words, _ID]
        done = await run_tool(command, self.child_env, directory=self.directory)
        if done.status:
            raise TrialError(f"{words[0]}: {done.last}")
        return done

    async def clean_up(self) -> None:
        """Remove the container if it exists, and end its supervisor, which would stay a while."""
        if _ID in os.listdir(self.root):
            with trio.move_on_after(40), contextlib.suppress(TrialError):
                await self._must("delete", "--force")
        with trio.move_on_after(20):
            for supervisor in supervisors(self.root):
                with contextlib.suppress(ProcessLookupError):
                    pidfd = supervisor.pidfd()
                    try:
                        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
                        await trio.lowlevel.wait_readable(pidfd)
                    finally:
                        os.close(pidfd)


def judge_state(text: str, error_line: str) -> Finding:
    """Judge the state of the ended container.

    `error_line` is the last line of the container's standard error, or "".
    """
    try:
        annotations = json.loads(text)["annotations"]
        status = annotations["org.scrun.exit_status"]
    except (ValueError, LookupError, TypeError):
        return fail("its state has no exit status", _REMEDY)
    if status == "0":
        engine = annotations.get("org.scrun.engine", "")
        return ok(f"created, run to its end and deleted ({engine})")
    reason = (
        annotations.get("org.scrun.message") or error_line or annotations.get("org.scrun.reason")
    )
    return fail(f"ended with status {status}: {reason}", _REMEDY)


class _CommandTrial(_Trial):
    """A container of this machine's `sleep` by an oci.conf, from its creation to its removal."""

    def __init__(self, call: DoctorCall, conf: OciConf, root: str) -> None:
        uid = os.geteuid()
        patterns = node_runtime(conf, call.settings.runtime)
        user, node = pwd.getpwuid(uid).pw_name, os.uname().nodename
        self._commands = OciConfCommands(conf, node, user, uid, patterns)
        super().__init__(root, call.directory, self._commands.child_env(call.child_env))
        self._conf = conf
        self._container = RuntimeContainer(root, "0", call.directory)

    async def run(self) -> str:
        """Run the container; return what worked.

        Raises:
            TrialError: A step failed.
            ScrunError: The container could not be prepared.
        """
        self._container = await trio.to_thread.run_sync(self._prepare)
        with self.errors() as fd:
            try:
                await self._live(fd)
                if self._commands.is_container:
                    await self._must("RunTimeDelete", self._commands.delete(self._container), fd)
            except BaseException:
                with trio.move_on_after(_ENDS, shield=True):
                    delete = self._commands.delete(self._container)
                    async with child(delete, self.child_env) as deleting:
                        await deleting.wait()
                raise
        return f"{', '.join(self._conf.commands)}: each works on this machine"

    def _prepare(self) -> RuntimeContainer:
        """Stage the bundle, as the local engine does."""
        commands = self._commands
        bundle = write_bundle(self.root, "sleep", "60")
        with open(os.path.join(bundle, "config.json"), "rb") as file:
            config = json.load(file)
        target = local_target(uid=os.geteuid(), gid=os.getegid(), maps_root=commands.maps_root)
        target = msgspec.structs.replace(target, link_rootfs=commands.link_rootfs)
        staged = stage_in(config, bundle, os.path.join(self.root, "@staged"), target)
        arguments = tuple(config["process"]["args"])
        step = Step(staged.bundle, arguments, (0, 1, 2), False, "", True, lambda: None)
        return commands.prepare(self._container, step, {})

    async def _live(self, fd: int) -> None:
        commands, log = self._commands, os.path.join(self.root, "@log")
        async with child(
            commands.run(self._container, log),
            self.child_env,
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
                raise TrialError(f"it did not end within {_ENDS:g} s of RunTimeKill")
        self._container = msgspec.structs.replace(self._container, pid=0)

    async def _until_it_runs(self, running: Child, log: str) -> None:
        """Wait until RunTimeQuery says `running`; without one, until it ran for a moment.

        Raises:
            TrialError: The container does not run.
        """
        query = self._commands.state(self._container)
        with trio.move_on_after(_STARTS):
            while not await _ends(running, _AGAIN if query else _SURE):
                if not query or await self._status(query) == "running":
                    return
        if not running.ended:
            raise TrialError(f"RunTimeQuery does not say `running` within {_STARTS:g} s")
        how = "RunTimeRun" if self._conf.mode == "run" else "RunTimeCreate, RunTimeStart"
        raise TrialError(f"{how}: {self.last_error() or _last_line(log) or 'it ended at once'}")

    async def _status(self, query: str) -> str:
        text = await output_of(["/bin/sh", "-c", query], self.child_env)
        try:
            return str(json.loads(text)["status"])
        except (ValueError, LookupError, TypeError, RecursionError):
            return ""

    async def _must(self, key: str, command: Sequence[str], fd: int) -> None:
        async with child(command, self.child_env, stdout=fd, stderr=fd) as called:
            status = await called.wait()
        if status:
            raise TrialError(f"{key}: {self.last_error() or f'status {status}'}")


async def _ends(running: Child, seconds: float) -> bool:
    """Wait for the end of a child, for some seconds at most; return whether it ended."""
    with trio.move_on_after(seconds):
        await running.wait()
    return running.ended


def _pid(path: str) -> int:
    return int(Path(path).read_text())


def _last_line(path: str) -> str:
    """Return the last line of a file that is not blank, or ""."""
    try:
        text = Path(path).read_text(errors="replace")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def write_bundle(root: str, name: str, *arguments: str) -> str:
    """Make a bundle of a program and its libraries.

    It has a few MiB, so that copying it is fast. A bundle of bind mounts would be smaller, but
    unlike those of container engines.
    """
    bundle = os.path.join(root, "@bundle")
    rootfs = os.path.join(bundle, "rootfs")
    program = shutil.which(name, path=SYSTEM_PATH)
    if program is None:
        raise OSError(f"no program `{name}`")
    listed = subprocess.run(
        ["ldd", program], env={"PATH": SYSTEM_PATH, "LC_ALL": "C"}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=10, check=False,
    )  # fmt: skip
    for path in (program, *libraries(listed.stdout)):
        os.makedirs(os.path.dirname(rootfs + path), exist_ok=True)
        shutil.copy(path, rootfs + path)
    for folder in ("proc", "dev", "sys", "tmp", "etc"):
        os.makedirs(os.path.join(rootfs, folder), exist_ok=True)
    for name in ("passwd", "group"):  # Charliecloud and the like mount this machine's files there
        Path(rootfs, "etc", name).touch()
    config = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": [program, *arguments],
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": "/",
        },
        "root": {"path": "rootfs"},
        "hostname": "doctor",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
        ],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]},
    }
    Path(bundle, "config.json").write_bytes(msgspec.json.encode(config))
    return bundle


def libraries(text: str) -> list[str]:
    """Parse the paths in ldd(1)'s output: `NAME => PATH (ADDRESS)` or `PATH (ADDRESS)`."""
    return re.findall(r"(?m)(?:^|=>)\s*(/\S+) \(0x", text)


BY_HAND = Check(("oci.conf by hand",), one(_by_hand), deadline=60)
CHECKS = (
    Check(("runtime here",), one(_runtime), deadline=60),
    Check((NAME,), one(_container), deadline=150),
)
