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
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import trio

from scrun.commands.spec import spec
from scrun.core.errors import ScrunError
from scrun.core.own_directory import own_directory
from scrun.core.paths import python_code
from scrun.oci.signals import its_end
from scrun.settings.oci_conf.commands import node_runtime
from scrun.settings.oci_conf.parse import OciConf
from scrun.supervisor.children.processes import SYSTEM_PATH, Child, ChildEnv, child, output_of
from scrun.supervisor.contracts.engine import Step
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.engines.local.commands import RuntimeContainer
from scrun.supervisor.engines.local.runtimes import find_runtime
from scrun.supervisor.engines.local.site_commands import OciConfCommands
from scrun.supervisor.engines.local.target import local_target
from scrun.supervisor.programs.doctor.call import Check, DoctorCall, one, read_oci_conf, run_tool
from scrun.supervisor.programs.doctor.cluster import by_own_shim
from scrun.supervisor.programs.doctor.findings import Finding, fail, ok, warn
from scrun.supervisor.shim.runtime import last_line
from scrun.supervisor.staging.staged_bundle import stage_in

NAME = "container"
_SCRUN = "from scrun.main import main; main()"
_ID = "doctor"
_LIFE, _STARTS, _ENDS = 60.0, 10.0, 10.0
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
        await in_thread(read_oci_conf, local.oci_conf)
        return ok(f"the commands of {local.oci_conf}")
    try:
        found = await in_thread(
            lambda: find_runtime(local.runtime, env=call.child_env.environment)
        )
    except ScrunError as error:
        return fail(str(error), "correct that, or use --engine slurm")
    text = " ".join((found.path, *found.arguments))
    limits = "" if found.cgroups else ", which cannot apply limits here"
    return ok(text + limits + "".join(f"; passed over {reason}" for reason in found.passed_over))


async def try_container(call: DoctorCall, variables: Mapping[str, str] = {}) -> Finding:
    """Create, start, await and delete a container, with this call's engine, and more variables."""
    if "settings" in call.errors or not call.root or call.engine is None:
        return fail("cannot be created", _ABOVE)
    async with own_root(call) as root:
        trial = _Trial(root, call.child_env.with_more(variables), call.directory)
        run = partial(_by_scrun, call, trial)
        return await _judged(root, ("true",), run, partial(fail, remedy=_REMEDY))


async def _by_hand(call: DoctorCall) -> Finding:
    path = call.oci_conf if call.by_slurm else call.settings.local.oci_conf
    if path is None or (call.by_slurm and await in_thread(by_own_shim, call, abandon=True)):
        return ok("not needed: no oci.conf")
    if "settings" in call.errors or not call.root:
        return warn("not tried", _ABOVE)
    # nodes may have other cgroups and another root directory than this machine
    remedy = "check its commands with `scrun oci-conf render`, and correct them"
    failed = partial(warn if call.by_slurm else fail, remedy=remedy)
    try:
        conf = await in_thread(read_oci_conf, path, abandon=True)
    except ScrunError as error:
        return failed(str(error))
    if missing := [*call.missing(conf).values()]:
        text = f"{missing[0]} is not on this machine"
        if call.by_slurm:  # a submit host need not have it
            return ok(f"not tried: {text}")
        return fail(text, f"install it, or correct {path}")
    async with own_root(call) as root:
        return await _judged(
            root, ("sleep", "60"), partial(_by_commands, call, conf, root), failed
        )


@contextlib.asynccontextmanager
async def own_root(call: DoctorCall) -> AsyncIterator[str]:
    """Make a directory in the root directory, on its file system, by a name of no container."""
    await in_thread(own_directory, call.root)
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


async def _judged(
    root: str,
    program: tuple[str, ...],
    run: Callable[[str], Awaitable[Finding]],
    failed: Callable[[str], Finding],
) -> Finding:
    """Run a program of this machine's in a container, for a time; `run` leaves nothing."""
    try:
        bundle = await in_thread(partial(write_bundle, root, *program))
    except (OSError, subprocess.SubprocessError) as error:
        return warn(f"no bundle to try: {error}", "check whether ldd works")
    try:
        with trio.move_on_after(_LIFE):
            return await run(bundle)
        return failed(f"did not end within {_LIFE:g} s")
    except (ScrunError, TrialError) as error:
        return failed(str(error))


class _Trial(msgspec.Struct, frozen=True):
    """Commands for a container; what they, and the container, write is in a file below `root`."""

    root: str
    child_env: ChildEnv
    directory: str = "/"

    @contextlib.asynccontextmanager
    async def running(
        self, command: Sequence[str], directory: str = "", *, whole_group: bool = False
    ) -> AsyncIterator[Child]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(f"{self.root}/@said", flags, 0o600)
        try:
            async with child(
                command, self.child_env, stdout=fd, stderr=fd, whole_group=whole_group,
                directory=directory or self.directory,
            ) as running:  # fmt: skip
                yield running
        finally:
            os.close(fd)

    async def must(self, step: str, command: Sequence[str]) -> None:
        """Run a command to its end; TrialError if it fails."""
        async with self.running(command) as called:
            status = await called.wait()
        if status:
            reason = self.last_word() or f"it {its_end(status)}"
            raise TrialError(f"{step}: {reason.removeprefix('scrun: ')}")

    def last_word(self, file: str = "@said") -> str:
        """Return the last line of a file below `root`, or ""."""
        path = Path(self.root, file)
        return last_line(path.read_bytes()).strip() if path.exists() else ""


async def _by_scrun(call: DoctorCall, trial: _Trial, bundle: str) -> Finding:
    """Run a container by scrun, from `create` to the end of its supervisor."""
    scrun = python_code(_SCRUN, "--root", trial.root)
    options = ("config-file", "engine", "stager", "slurm-conf")
    scrun += [f"--{option}={value}" for option in options if (value := call.parsed.text(option))]
    pid_file = os.path.join(trial.root, "@pid")

    async def must(step: str, *options: str) -> None:
        await trial.must(step, [*scrun, step, *options, _ID])

    try:
        await must("create", "--bundle", bundle, "--pid-file", pid_file)
        pidfd = os.pidfd_open(int(await trio.Path(pid_file).read_text()))
        try:
            await must("start")
            await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)
        state = [*scrun, "state", _ID]
        done = await run_tool(state, trial.child_env, directory=trial.directory)
        finding = judge_state("\n".join(done.lines), trial.last_word())
        await must("delete")
        return finding
    finally:
        if _ID in os.listdir(trial.root):
            with trio.move_on_after(40, shield=True), contextlib.suppress(TrialError):
                await must("delete", "--force")
        # its supervisor would stay for a while
        with trio.move_on_after(20, shield=True), contextlib.suppress(TrialError):
            await trial.must("stop", [*scrun, "supervisor", "stop", "--all"])


def judge_state(text: str, error_line: str) -> Finding:
    """Judge the state of the ended container, and its last line of standard error, if any."""
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


async def _by_commands(call: DoctorCall, conf: OciConf, root: str, bundle: str) -> Finding:
    """Run a container by an oci.conf, from its creation to its removal."""
    uid, node = os.geteuid(), os.uname().nodename
    patterns = node_runtime(conf, call.settings.runtime)
    commands = OciConfCommands(conf, node, pwd.getpwuid(uid).pw_name, uid, patterns)
    trial = _Trial(root, commands.child_env(call.child_env))
    container = RuntimeContainer(root, "0", call.directory)
    container = await in_thread(_prepared, commands, container, bundle)
    try:
        async with trial.running(
            commands.run(container, os.path.join(root, "@log")),
            commands.working_directory(container),
            whole_group=not commands.is_container,
        ) as running:
            if not commands.is_container:
                container = msgspec.structs.replace(container, pid=running.pid)
            await _until_it_runs(trial, running, commands.state(container), conf.mode)
            await trial.must("RunTimeKill", commands.kill(container, signal.SIGKILL))
            if not await _ends(running, _ENDS):
                raise TrialError(f"it did not end within {_ENDS:g} s of RunTimeKill")
        container = msgspec.structs.replace(container, pid=0)
        if commands.is_container:
            await trial.must("RunTimeDelete", commands.delete(container))
    except BaseException:
        with trio.move_on_after(_ENDS, shield=True), contextlib.suppress(TrialError):
            await trial.must("RunTimeDelete", commands.delete(container))
        raise
    return ok(f"{', '.join(conf.commands)}: each works on this machine")


def _prepared(
    commands: OciConfCommands, container: RuntimeContainer, bundle: str
) -> RuntimeContainer:
    """Stage the bundle, as the local engine does."""
    config = json.loads(Path(bundle, "config.json").read_bytes())
    target = local_target(uid=os.geteuid(), gid=os.getegid(), maps_root=commands.maps_root)
    target = msgspec.structs.replace(target, link_rootfs=commands.link_rootfs)
    staged = stage_in(config, bundle, os.path.join(container.record, "@staged"), target)
    arguments = tuple(config["process"]["args"])
    step = Step(staged.bundle, arguments, (0, 1, 2), False, "", True, lambda: None)
    return commands.prepare(container, step, {})


async def _until_it_runs(trial: _Trial, running: Child, query: str, mode: str) -> None:
    """Wait until RunTimeQuery says `running`; without one, until it ran for a moment."""
    with trio.move_on_after(_STARTS):
        while not await _ends(running, _AGAIN if query else _SURE):
            answer = query and await output_of(["/bin/sh", "-c", query], trial.child_env)
            with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):
                if not query or json.loads(answer)["status"] == "running":
                    return
    if not running.ended:
        raise TrialError(f"RunTimeQuery does not say `running` within {_STARTS:g} s")
    how = "RunTimeRun" if mode == "run" else "RunTimeCreate, RunTimeStart"
    raise TrialError(
        f"{how}: {trial.last_word() or trial.last_word('@log') or 'it ended at once'}"
    )


async def _ends(running: Child, seconds: float) -> bool:
    """Wait for the end of a child, for some seconds at most; return whether it ended."""
    with trio.move_on_after(seconds):
        await running.wait()
    return running.ended


def write_bundle(root: str, name: str, *arguments: str) -> str:
    """Make a bundle of a program and its libraries, a few MiB, without bind mounts."""
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
    config = spec()
    config["process"] |= {"terminal": False, "args": [program, *arguments]}
    config |= {"root": {"path": "rootfs"}, "hostname": "doctor"}
    Path(bundle, "config.json").write_bytes(msgspec.json.encode(config))
    return bundle


def libraries(text: str) -> list[str]:
    """Parse the paths in ldd(1)'s output: `NAME => PATH (ADDRESS)` or `PATH (ADDRESS)`."""
    return re.findall(r"(?m)(?:^|=>)\s*(/\S+) \(0x", text)


BY_HAND = Check(("oci.conf by hand",), one(_by_hand), deadline=90)
CHECKS = (
    Check(("runtime here",), one(_runtime), deadline=60),
    Check((NAME,), one(try_container), deadline=150),
)
