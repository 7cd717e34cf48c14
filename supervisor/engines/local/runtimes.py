"""Finds the OCI runtime of this machine for the local engine, and builds its command lines.

An installed runtime need not work: crun refuses hybrid cgroups, sets a limit that root without
CAP_SYS_RESOURCE may not set, or needs user namespaces that the site has disabled. So scrun tries
each one with a container that runs `true`, which takes 10 to 40 ms.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

import msgspec

from scrun.core.errors import RuntimeMissing
from scrun.oci.signals import its_end
from scrun.supervisor.engines.failures import read_log, with_remedy

if TYPE_CHECKING:
    from collections.abc import Mapping

# in order of preference: crun is smaller and faster
_NAMES = ("crun", "runc")
# ordinary users often lack these in PATH, and container engines pass no PATH at all
_ALSO = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")
# what programs need, on every distribution
_TOP = ("bin", "sbin", "usr", "lib", "lib32", "lib64", "libx32", "nix", "gnu")
_PATIENCE = 10.0
_SHORTAGE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_UNIFIED = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")


class InstalledRuntime(msgspec.Struct, frozen=True):
    """An OCI runtime that works on this machine.

    Attributes:
        name: The name of its program; "crun" or "runc" if no setting names it.
        arguments: The global options that it needs here.
        cgroups: Whether it applies config.json's resources here.
        passed_over: Candidates that failed before this one, with the reasons.
    """

    name: str
    path: str
    arguments: tuple[str, ...] = ()
    cgroups: bool = True
    passed_over: tuple[str, ...] = ()

    @property
    def maps_root(self) -> bool:
        """Whether a user namespace must have a user 0: all but crun require one."""
        return "crun" not in self.name

    @property
    def takes_config(self) -> bool:
        """Whether config.json may be outside the bundle: crun has `--config`."""
        return "crun" in self.name

    def command(self, root: str, *words: str, log: str | None = None) -> list[str]:
        """Return a command for containers below a root; `log` gets its errors, as JSON."""
        logging = ["--log", log, "--log-format", "json"] if log else []
        return [self.path, *self.arguments, "--root", root, *logging, *words]


def find_runtime(
    setting: str | None, *, env: Mapping[str, str], may_limit: bool = True
) -> InstalledRuntime:
    """Find a runtime that works by trying the candidates.

    Blocks for as long as the trials take: call it in a worker thread.

    Args:
        setting: The name or path of the only one to consider; None: crun, runc.
        env: The caller's environment, for PATH, TMPDIR and what the runtime itself reads.
        may_limit: Whether it may make control groups.

    Raises:
        RuntimeMissing: No runtime is installed, or none works.
        OSError: The machine has no process, memory or descriptor left for a trial.
    """
    path = os.pathsep.join((*filter(None, (env.get("PATH"),)), *_ALSO))
    found = ((name, shutil.which(name, path=path)) for name in ((setting,) if setting else _NAMES))
    installed = [(os.path.basename(name), program) for name, program in found if program]
    if not installed and setting:
        raise RuntimeMissing(
            f"OCI runtime {setting} is not installed: install it, or remove the setting"
        )
    if not installed:
        raise RuntimeMissing(
            "no OCI runtime is installed on this machine: apt install crun (or runc)"
        )
    refused: list[str] = []
    # first with cgroups: a runtime that can apply limits is better than one that cannot
    for cgroups in (True, False) if may_limit else (False,):
        for name, program in installed:
            arguments = () if cgroups else _without_cgroups(name)
            candidate = InstalledRuntime(name, program, arguments, cgroups, tuple(refused))
            reason = try_runtime(candidate, env=env)
            if reason is None:
                return candidate
            refused.append(f"{' '.join((program, *arguments))}: {reason}")
    raise RuntimeMissing(
        with_remedy(f"no OCI runtime works on this machine: {'; '.join(refused)}")
    )


def _without_cgroups(name: str) -> tuple[str, ...]:
    # runc cannot be told to make no cgroups, only to ignore that it may not
    return ("--cgroup-manager=disabled",) if "crun" in name else ("--rootless=true",)


def try_runtime(runtime: InstalledRuntime, *, env: Mapping[str, str]) -> str | None:
    """Run `true` in a container; return None, or the reason why that failed."""
    true = shutil.which("true", path=os.pathsep.join(_ALSO))
    if true is None:
        return "no program `true` to try it with"
    # TMPDIR may be of another node, and a service's /tmp may be read-only
    places = (env.get("TMPDIR"), "/tmp", "/var/tmp", env.get("XDG_RUNTIME_DIR"), "/dev/shm")
    usable = (path for path in places if path and os.access(path, os.W_OK | os.X_OK))
    place = next(usable, None)
    with tempfile.TemporaryDirectory(prefix="scrun-try-", dir=place) as directory:
        _write_bundle(directory, os.path.realpath(true))
        root, log = os.path.join(directory, "root"), os.path.join(directory, "log")
        # a unique name: as root the runtime makes a cgroup of this name
        container = os.path.basename(directory)
        try:
            words = ("run", "--bundle", directory, "--", container)
            done = _run(runtime.command(root, *words, log=log), env)
            if done.returncode == 0:
                reason = None
            else:
                reason = _reason(log, done.stderr) or f"the runtime {its_end(done.returncode)}"
        except subprocess.TimeoutExpired:
            reason = f"no answer within {_PATIENCE:.0f} s"
        except OSError as error:
            if error.errno in _SHORTAGE:
                raise  # this says nothing about the runtime, and the next call may succeed
            return error.strerror or str(error)
        with contextlib.suppress(subprocess.TimeoutExpired):
            if reason is not None:
                _run(runtime.command(root, "delete", "--force", "--", container), env)
        for hierarchy in _UNIFIED:
            # crun leaves it behind when it fails, and runc 1.1 sometimes in any case
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


def _write_bundle(directory: str, program: str) -> None:
    """Write a bundle with bind mounts of this machine's programs."""
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
        # every container engine asks for this as root, and crun needs CAP_SYS_RESOURCE for it
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
