"""Finds the OCI runtime of this machine for the embedded engine, and speaks its language.

A runtime that is installed need not work: crun refuses hybrid cgroups, sets a limit that root
without CAP_SYS_RESOURCE may not set, needs user namespaces that a site switched off. So each
is tried with a container that runs `true`, which takes some 10 to 40 ms.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

import msgspec

from scrun.core.errors import RuntimeMissing

if TYPE_CHECKING:
    from collections.abc import Mapping

# in the order of preference: crun is smaller and quicker
_NAMES = ("crun", "runc")
# ordinary users often do not have these in PATH, and engines pass on no PATH at all
_ALSO = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")
# what programs are made of, on every distribution
_TOP = ("bin", "sbin", "usr", "lib", "lib32", "lib64", "libx32", "nix", "gnu")
_PATIENCE = 10.0
_ENTRY = re.compile(r"^\{", re.MULTILINE)
_DECODER = json.JSONDecoder()
_SHORTAGE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_UNIFIED = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")


class InstalledRuntime(msgspec.Struct, frozen=True):
    """An OCI runtime that works here.

    Attributes:
        name: What it is called, "crun" or "runc" when it was looked for.
        path: Its program.
        arguments: The global options that it needs here.
        cgroups: Whether it applies config.json's resources here.
        passed_over: What was tried before, and why it is not that.
    """

    name: str
    path: str
    arguments: tuple[str, ...] = ()
    cgroups: bool = True
    passed_over: tuple[str, ...] = ()

    @property
    def maps_root(self) -> bool:
        """Whether a user namespace needs a user 0: for runc and its kin it does."""
        return "crun" not in self.name

    @property
    def takes_config(self) -> bool:
        """Whether config.json may be elsewhere than in the bundle: crun has `--config`."""
        return "crun" in self.name


def find_runtime(setting: str | None, *, env: Mapping[str, str]) -> InstalledRuntime:
    """Find a runtime that works, by trying.

    It blocks for as long as the trials take: call it in a worker thread.

    Args:
        setting: The name or path of the only one to consider; None: crun, runc.
        env: The caller's environment, for PATH, TMPDIR and what the runtime itself reads.

    Raises:
        RuntimeMissing: None is installed, or none works.
        OSError: No process, memory or descriptor is left to try it.
    """
    path = os.pathsep.join((*filter(None, (env.get("PATH"),)), *_ALSO))
    found = ((name, shutil.which(name, path=path)) for name in ((setting,) if setting else _NAMES))
    installed = [(os.path.basename(name), program) for name, program in found if program]
    if not installed and setting:
        raise RuntimeMissing(
            f"OCI runtime {setting} is not installed: install it, or leave the setting out"
        )
    if not installed:
        raise RuntimeMissing(
            "no OCI runtime is installed on this machine: apt install crun (or runc)"
        )
    refused: list[str] = []
    # with cgroups first: one that can apply limits is better than one that cannot
    for cgroups in (True, False):
        for name, program in installed:
            arguments = () if cgroups else _without_cgroups(name)
            candidate = InstalledRuntime(name, program, arguments, cgroups, tuple(refused))
            reason = try_runtime(candidate, env=env)
            if reason is None:
                return candidate
            refused.append(f"{' '.join((program, *arguments))}: {reason}")
    raise RuntimeMissing("no OCI runtime works on this machine: " + "; ".join(refused))


def _without_cgroups(name: str) -> tuple[str, ...]:
    # runc has no way to leave cgroups alone, but one to ignore that it may not make any
    return ("--cgroup-manager=disabled",) if "crun" in name else ("--rootless=true",)


def try_runtime(runtime: InstalledRuntime, *, env: Mapping[str, str]) -> str | None:
    """Run `true` in a container; return None, or the reason why that failed."""
    true = shutil.which("true", path=os.pathsep.join(_ALSO))
    if true is None:
        return "there is no `true` to try it with"
    with tempfile.TemporaryDirectory(prefix="scrun-try-", dir=env.get("TMPDIR")) as directory:
        _write_bundle(directory, os.path.realpath(true))
        root, log = os.path.join(directory, "root"), os.path.join(directory, "log")
        # a name of its own: as root the runtime makes a cgroup of this name
        container = os.path.basename(directory)
        try:
            done = _run(
                run_command(runtime, root=root, bundle=directory, id=container, log=log), env
            )
            if done.returncode == 0:
                reason = None
            else:
                reason = _reason(log, done.stderr) or f"exit status {done.returncode}"
        except subprocess.TimeoutExpired:
            reason = f"no answer within {_PATIENCE:.0f} s"
        except OSError as error:
            if error.errno in _SHORTAGE:
                raise  # that says nothing of the runtime, and the next call may find it well
            return error.strerror or str(error)
        with contextlib.suppress(subprocess.TimeoutExpired):
            if reason is not None:
                _run(delete_command(runtime, root=root, id=container), env)
        for hierarchy in _UNIFIED:
            # crun leaves it behind when it fails, and runc 1.1 now and then in any case
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(hierarchy, container))
        return reason


def _run(command: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_PATIENCE,
        check=False,
    )


def _reason(log: str, stderr: bytes) -> str:
    """Return the last error of a log, or the last line of standard error."""
    try:
        with open(log, "rb") as file:
            error, _ = read_log(file.read())
    except OSError:
        error = ""
    return error or (stderr.decode(errors="replace").strip().splitlines() or [""])[-1]


def read_log(content: bytes) -> tuple[str, bytes]:
    """Read what a runtime wrote with `--log-format json`.

    Entries are JSON values one after another: each on a line (runc, crun), or on several (crun
    1.28).

    Returns:
        The message of the last error, "" if there is none; and what else there is: crun 1.8 puts
        the last output of a terminal there.
    """
    text = content.decode(errors="surrogateescape")
    error, others, place = "", [], 0
    while (found := _ENTRY.search(text, place)) is not None:
        start = found.start()
        others.append(text[place:start])
        try:
            entry, place = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            entry, place = None, start + 1
        if not isinstance(entry, dict) or not {"msg", "level"} <= entry.keys():
            others.append(text[start:place])
            continue
        place += text.startswith("\n", place)
        if entry["level"] == "error":
            error = str(entry["msg"])
    others.append(text[place:])
    return error, "".join(others).encode(errors="surrogateescape")


def _write_bundle(directory: str, program: str) -> None:
    """Write a bundle that has this machine's programs in it."""
    rootfs = os.path.join(directory, "rootfs")
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
    ]
    for folder in ("proc", "dev"):
        os.makedirs(os.path.join(rootfs, folder))
    for name in _TOP:
        here, there = "/" + name, os.path.join(rootfs, name)
        if os.path.islink(here):
            os.symlink(os.readlink(here), there)
        elif os.path.isdir(here):
            os.mkdir(there)
            mounts.append(
                {"destination": here, "type": "bind", "source": here, "options": ["rbind"]}
            )
    linux: dict[str, Any] = {
        "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]
    }
    if os.geteuid() != 0:
        linux["namespaces"].append({"type": "user"})
        linux["uidMappings"] = [{"containerID": 0, "hostID": os.geteuid(), "size": 1}]
        linux["gidMappings"] = [{"containerID": 0, "hostID": os.getegid(), "size": 1}]
    else:
        # what every engine asks for as root, and what crun needs CAP_SYS_RESOURCE for
        linux["resources"] = {"devices": [{"allow": False, "access": "rwm"}]}
    config = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": [program],
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": "/",
        },
        "root": {"path": rootfs},
        "mounts": mounts,
        "linux": linux,
    }
    with open(os.path.join(directory, "config.json"), "wb") as file:
        file.write(msgspec.json.encode(config))


def program_failure(text: str) -> int | None:
    """Understand a runtime's word that the program cannot be run.

    Args:
        text: What crun or runc said.

    Returns:
        The status that shells have for it (POSIX 2.8.2): 127 not found, 126 not executable; or
        None when it says something else.
    """
    # crun: executable file `X` not found in $PATH: No such file or directory
    # runc: exec: "X": executable file not found in $PATH; exec: "X": stat X: no such file or …
    about_program = "executable file" in text or "exec: " in text or "open executable" in text
    if about_program and ("not found" in text or "o such file or directory" in text):
        return 127
    if about_program and "ermission denied" in text:
        return 126
    return None


def run_command(
    runtime: InstalledRuntime,
    *,
    root: str,
    bundle: str,
    id: str,  # noqa: A002
    log: str,
) -> list[str]:
    """Return the command that runs a container in the foreground, and removes it at the end."""
    return [*_global_options(runtime, root, log), "run", *_bundle(bundle, None), "--", id]


def create_command(
    runtime: InstalledRuntime,
    *,
    root: str,
    bundle: str,
    id: str,  # noqa: A002
    log: str,
    pid_file: str,
    console: str | None,
    config: str | None = None,
) -> list[str]:
    """Return the command that makes a container whose program does not run yet.

    Its first process has the command's standard streams, and outlives it.

    Args:
        runtime: The runtime.
        root: Where it keeps what it knows.
        bundle: The bundle.
        id: The container.
        log: Where it writes what went wrong, besides standard error.
        pid_file: Where it writes the first process' pid.
        console: The socket that gets the terminal, if there is one.
        config: What is read instead of the bundle's config.json, if the runtime can do that.
    """
    words = ["create", *_bundle(bundle, config), "--pid-file", pid_file]
    terminal = ["--console-socket", console] if console is not None else []
    return [*_global_options(runtime, root, log), *words, *terminal, "--", id]


def _bundle(bundle: str, config: str | None) -> list[str]:
    return ["--bundle", bundle, *(["--config", config] if config is not None else [])]


def kill_command(
    runtime: InstalledRuntime,
    *,
    root: str,
    id: str,  # noqa: A002
    signal: str,
    log: str | None = None,
) -> list[str]:
    """Return the command that sends a signal to the first process of a container."""
    return [*_global_options(runtime, root, log), "kill", "--", id, signal]


def delete_command(
    runtime: InstalledRuntime,
    *,
    root: str,
    id: str,  # noqa: A002
    log: str | None = None,
) -> list[str]:
    """Return the command that ends and removes a container; there need not be one."""
    return [*_global_options(runtime, root, log), "delete", "--force", "--", id]


def command(runtime: InstalledRuntime, *words: str, root: str) -> list[str]:
    """Return another command of a runtime: its words, for containers below a root."""
    return [*_global_options(runtime, root, None), *words]


def _global_options(runtime: InstalledRuntime, root: str, log: str | None) -> list[str]:
    logging = ["--log", log, "--log-format", "json"] if log else []
    return [runtime.path, *runtime.arguments, "--root", root, *logging]
