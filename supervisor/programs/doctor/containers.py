"""Runs a container of this machine's `true` with the commands that a container engine calls."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio

from scrun.core.errors import ScrunError
from scrun.core.own_directory import own_directory
from scrun.core.paths import packages
from scrun.settings.oci_conf.parse import parse_oci_conf
from scrun.settings.slurm_conf import read_conf
from scrun.supervisor.children.processes import SYSTEM_PATH, ChildEnv, child
from scrun.supervisor.engines.local.runtimes import find_runtime
from scrun.supervisor.programs.doctor.call import Check, DoctorCall, Done, Reporter, run_tool
from scrun.supervisor.programs.doctor.findings import Finding

NAME = "container"
_SCRUN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from scrun.main import main; main()"
_ID = "doctor"
_LIFE = 60.0
_REMEDY = "correct the other failures; with --debug the container's log has details"


async def _runtime(call: DoctorCall, report: Reporter) -> None:
    """Find the runtime of this machine. Its thread cannot be abandoned: it has children."""
    name = "runtime here"
    if call.by_slurm:
        report(Finding(name, "ok", "not needed: containers run on the nodes"))
        return
    if call.engine is not None and call.engine.name != "local":
        report(Finding(name, "ok", f"not needed: the engine is {call.engine.name}"))
        return
    local = call.settings.local
    if local.oci_conf is not None:
        text = await trio.to_thread.run_sync(read_conf, local.oci_conf)
        parse_oci_conf(text, local.oci_conf)
        report(Finding(name, "ok", f"the commands of {local.oci_conf}"))
        return
    try:
        found = await trio.to_thread.run_sync(
            lambda: find_runtime(local.runtime, env=call.child_env.environment)
        )
    except ScrunError as error:
        report(Finding(name, "fail", str(error), "correct that, or use --engine slurm"))
        return
    text = " ".join((found.path, *found.arguments))
    text += "" if found.cgroups else ", which cannot apply limits here"
    over = "".join(f"; passed over {reason}" for reason in found.passed_over)
    report(Finding(name, "ok", text + over))


async def _container(call: DoctorCall, report: Reporter) -> None:
    """Run the container with the engine of this call."""
    report(await try_container(call, {}))


async def try_container(call: DoctorCall, variables: Mapping[str, str]) -> Finding:
    """Create, start, await and delete a container.

    Args:
        call: The call of doctor.
        variables: Variables for its `create`, besides the call's own environment.
    """
    if call.settings_error or not call.root or call.engine is None:
        return Finding(NAME, "fail", "cannot be created", "correct the failures above")
    async with own_root(call) as root:
        try:
            bundle = await trio.to_thread.run_sync(write_bundle, root, "true")
        except (OSError, subprocess.SubprocessError) as error:
            return Finding(NAME, "warn", f"no bundle to try: {error}", "check whether ldd works")
        trial = _ContainerTrial(call, root, bundle, variables)
        try:
            with trio.move_on_after(_LIFE):
                return await trial.run()
            text = f"did not end within {_LIFE:g} s"
            return Finding(NAME, "fail", text, _REMEDY)
        finally:
            with trio.CancelScope(shield=True):
                await trial.clean_up()


@asynccontextmanager
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


class _ContainerTrial:
    """One container, from `create` to the end of its supervisor."""

    def __init__(
        self, call: DoctorCall, root: str, bundle: str, variables: Mapping[str, str]
    ) -> None:
        self._root, self._bundle = root, bundle
        self._directory = call.directory
        site = ["-S"] if sys.flags.no_site else []
        self._command = [sys.executable, "-I", *site, "-c", _SCRUN, packages()]
        for option in ("config-file", "engine", "stager", "slurm-conf"):
            if value := call.parsed.text(option):
                self._command.append(f"--{option}={value}")
        self._command += ["--root", root]
        environment = {**call.child_env.environment, **variables}
        self._child_env = ChildEnv(environment, call.child_env.umask)

    async def run(self) -> Finding:
        """Run the container to its end, and judge the result."""
        pid_file, errors = os.path.join(self._root, "@pid"), os.path.join(self._root, "@errors")
        arguments = ["create", "--bundle", self._bundle, "--pid-file", pid_file, _ID]
        status = await self._with_stderr(arguments, errors)
        if status:
            text = last_line(errors) or f"exit status {status}"
            return Finding(NAME, "fail", f"create: {text.removeprefix('scrun: ')}", _REMEDY)
        pidfd = os.pidfd_open(_pid(pid_file))
        try:
            done = await self._scrun("start", _ID)
            if done.status:
                return Finding(NAME, "fail", f"start: {done.last}", _REMEDY)
            await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)
        done = await self._scrun("state", _ID)
        if done.status:
            return Finding(NAME, "fail", f"state: {done.last}", _REMEDY)
        finding = judge_state("\n".join(done.lines), last_line(errors))
        done = await self._scrun("delete", _ID)
        if done.status:
            return Finding(NAME, "fail", f"delete: {done.last}", _REMEDY)
        return finding

    async def _scrun(self, *arguments: str) -> Done:
        return await run_tool(
            [*self._command, *arguments], self._child_env, directory=self._directory
        )

    async def _with_stderr(self, arguments: list[str], errors: str) -> int:
        """Call a command whose standard error, a file, is also the container's."""
        command = [*self._command, *arguments]
        fd = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            async with child(
                command, self._child_env, stderr=fd, directory=self._directory
            ) as create:
                return await create.wait()
        finally:
            os.close(fd)

    async def clean_up(self) -> None:
        """Remove the container if it exists, and end its supervisor, which would stay a while."""
        if _ID in os.listdir(self._root):
            with trio.move_on_after(40):
                await self._scrun("delete", "--force", _ID)
        with trio.move_on_after(20):
            for pidfd in _supervisors(self._root):
                try:
                    signal.pidfd_send_signal(pidfd, signal.SIGTERM)
                    await trio.lowlevel.wait_readable(pidfd)
                except ProcessLookupError:
                    pass
                finally:
                    os.close(pidfd)


def judge_state(text: str, error_line: str) -> Finding:
    """Judge the state of the ended container.

    Args:
        text: The output of `state`.
        error_line: The last line of the container's standard error.
    """
    try:
        annotations = json.loads(text)["annotations"]
        status = annotations["org.scrun.exit_status"]
    except (ValueError, LookupError, TypeError):
        return Finding(NAME, "fail", "its state has no exit status", _REMEDY)
    if status == "0":
        engine = annotations.get("org.scrun.engine", "")
        return Finding(NAME, "ok", f"created, run to its end and deleted ({engine})")
    reason = (
        annotations.get("org.scrun.message") or error_line or annotations.get("org.scrun.reason")
    )
    return Finding(NAME, "fail", f"ended with status {status}: {reason}", _REMEDY)


def _supervisors(root: str) -> list[int]:
    """Open a pidfd of each process that listens below this root directory."""
    found = []
    directory = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        for entry in os.listdir(root):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(5)
                sock.connect(f"/proc/self/fd/{directory}/{entry}")
                size = struct.calcsize("3i")
                peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
                found.append(os.pidfd_open(struct.unpack("3i", peer)[0]))
    finally:
        os.close(directory)
    return found


def _pid(path: str) -> int:
    return int(Path(path).read_text())


def last_line(path: str) -> str:
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
        call = rootfs + path
        os.makedirs(os.path.dirname(call), exist_ok=True)
        shutil.copy(path, call)
    for folder in ("proc", "dev", "sys", "tmp", "etc"):
        os.makedirs(os.path.join(rootfs, folder), exist_ok=True)
    for name in (
        "passwd",
        "group",
    ):  # Charliecloud and similar runtimes mount this machine's files there
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


CHECKS = (
    Check(("runtime here",), _runtime, deadline=60),
    Check((NAME,), _container, deadline=150),
)
