"""Bundles: a root file system of busybox, and config.json as `runc spec` writes it."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scrun.supervisor.staging.mounts import CopyPlaces
from tests.harness.program import run_program
from tests.harness.users import User

Config = dict[str, Any]

VOLUMES = CopyPlaces("/shared/volumes", 4 << 20)
"""Where a plan of staging puts what containers share."""

_CAPABILITIES = ["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"]


def _mount(destination: str, kind: str, *options: str) -> Config:
    mount = {"destination": destination, "type": kind, "source": destination.rpartition("/")[2]}
    return {**mount, "options": list(options)} if options else mount


def _mounts() -> list[Config]:
    safe = ("nosuid", "noexec", "nodev")
    pts = ("newinstance", "ptmxmode=0666", "mode=0620", "gid=5")
    return [
        _mount("/proc", "proc"),
        _mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        _mount("/dev/pts", "devpts", "nosuid", "noexec", *pts),
        _mount("/dev/shm", "tmpfs", *safe, "mode=1777", "size=65536k"),
        _mount("/dev/mqueue", "mqueue", *safe),
        _mount("/sys", "sysfs", *safe, "ro"),
        _mount("/sys/fs/cgroup", "cgroup", *safe, "relatime", "ro"),
    ]


def make_rootfs(path: Path) -> None:
    """Make a root file system of busybox and its applets."""
    for name in ("bin", "dev", "etc", "proc", "root", "sys", "tmp", "usr", "var"):
        (path / name).mkdir(parents=True)
    (path / "tmp").chmod(0o1777)
    busybox = shutil.which("busybox")
    assert busybox is not None, "busybox is missing: tools/setup --test"
    shutil.copy(busybox, path / "bin" / "busybox")
    applets = run_program([busybox, "--list"], check=True, timeout=10)
    for name in applets.stdout.split():
        if name != "busybox":
            (path / "bin" / name).symlink_to("busybox")
    (path / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (path / "etc" / "group").write_text("root:x:0:\n")


def make_config(args: Sequence[str], root: str = "rootfs", *, terminal: bool = False) -> Config:
    """Return the config.json of a container that runs `args`."""
    capabilities = ("bounding", "effective", "permitted")
    namespaces = ("pid", "network", "ipc", "uts", "mount", "cgroup")
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": terminal,
            "user": {"uid": 0, "gid": 0},
            "args": list(args),
            "env": ["PATH=/usr/local/bin:/usr/bin:/bin", "TERM=xterm"],
            "cwd": "/",
            "capabilities": dict.fromkeys(capabilities, _CAPABILITIES),
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}],
            "noNewPrivileges": True,
        },
        "root": {"path": root, "readonly": True},
        "hostname": "container",
        "mounts": _mounts(),
        "annotations": {"org.example.test": "yes"},
        "linux": {
            "namespaces": [{"type": kind} for kind in namespaces],
            "maskedPaths": ["/proc/kcore", "/proc/keys"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/sys"],
        },
    }


def map_user(config: Config, user: User) -> None:
    """Change a config.json so that this user's runtime takes it as it is."""
    linux = config["linux"]
    if not any(space["type"] == "user" for space in linux["namespaces"]):
        linux["namespaces"].append({"type": "user"})
    for key, number in (("uidMappings", user.uid), ("gidMappings", user.gid)):
        linux[key] = [{"containerID": 0, "hostID": number, "size": 1}]
    for mount in config["mounts"]:
        mount["options"] = [word for word in mount.get("options", ()) if word[:4] != "gid="]


def write_bundle(path: Path, config: object) -> Path:
    """Make a bundle directory of a config.json."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config, indent=1))
    return path


def snapshot(path: Path) -> dict[str, tuple[int, int, int]]:
    """What would show that somebody changed a bundle: modes, sizes and times of all in it."""
    found = {}
    for directory, directories, files in os.walk(path):
        for name in (*directories, *files):
            status = os.lstat(os.path.join(directory, name))
            key = os.path.relpath(os.path.join(directory, name), path)
            found[key] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found
