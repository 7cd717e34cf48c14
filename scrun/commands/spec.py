"""scrun spec: write a config.json to start from.

Like `runc spec`, but adapted to scrun: the container has the network of its node, because nobody
sets up another one there, no cgroup namespace, because the job already has its cgroups, and no
limits, because those of the user apply. With `--rootless` it has a user namespace: scrun
makes one itself where it needs one, but crun and runc do not.

Errors: StateError, when the file exists; it is never overwritten. OSError, when it cannot be
written.
"""

import json
import os
from typing import Any

from scrun.cli.parse import Parsed
from scrun.core.errors import StateError

NAME = "config.json"

# the common set of runc and podman for an untrusted program
CAPABILITIES = ("CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE")
_SETS = ("bounding", "effective", "permitted")

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_UNTRUSTED = ["nosuid", "noexec", "nodev"]
_TTY_GROUP = 5

# files that reveal or change something of the node; runc and podman hide the same
_MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/scsi",
    "/proc/sched_debug", "/proc/timer_list", "/proc/timer_stats", "/sys/firmware",
)  # fmt: skip
_READONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def run(parsed: Parsed) -> int:
    # `scrun --rootless spec` counts as well: the two options share their name
    rootless = parsed.options.get("rootless") in (True, "true")
    ids = (os.geteuid(), os.getegid()) if rootless else None
    path = os.path.join(parsed.text("bundle") or ".", parsed.text("file") or NAME)
    content = json.dumps(spec(ids), indent=2).encode() + b"\n"
    _write_new(path, content)
    return 0


def spec(ids: tuple[int, int] | None = None) -> dict[str, Any]:
    """Return the config.json; `ids` are root in a user namespace; None: no such namespace."""
    linux: dict[str, Any] = {
        "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
        "maskedPaths": list(_MASKED),
        "readonlyPaths": list(_READONLY),
    }
    if ids is not None:
        linux["namespaces"].append({"type": "user"})
        for key, outside in zip(("uidMappings", "gidMappings"), ids, strict=True):
            linux[key] = [{"containerID": 0, "hostID": outside, "size": 1}]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": True,
            "user": {"uid": 0, "gid": 0},
            "args": ["sh"],
            "env": [f"PATH={_PATH}", "TERM=xterm"],
            "cwd": "/",
            "capabilities": {kind: list(CAPABILITIES) for kind in _SETS},
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": True},
        "hostname": "scrun",
        "mounts": _mounts(rootless=ids is not None),
        "linux": linux,
    }


def _mounts(*, rootless: bool) -> list[dict[str, Any]]:
    devpts = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]
    if not rootless:  # in the namespace of one user there is no group tty
        devpts.append(f"gid={_TTY_GROUP}")
    shm = [*_UNTRUSTED, "mode=1777", "size=65536k"]
    # a new sysfs needs a network namespace of the same user namespace (mount_namespaces(7),
    # "Restrictions"); without one the node's is bind-mounted
    sys = ("none", "/sys", ["rbind", *_UNTRUSTED, "ro"])
    rows: tuple[tuple[str, str, str, list[str]], ...] = (
        ("/proc", "proc", "proc", []),
        ("/dev", "tmpfs", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        ("/dev/pts", "devpts", "devpts", devpts),
        ("/dev/shm", "tmpfs", "shm", shm),
        ("/dev/mqueue", "mqueue", "mqueue", list(_UNTRUSTED)),
        ("/sys", *(sys if rootless else ("sysfs", "sysfs", [*_UNTRUSTED, "ro"]))),
    )
    return [
        {"destination": destination, "type": kind, "source": source}
        | ({"options": options} if options else {})
        for destination, kind, source, options in rows
    ]


def _write_new(path: str, content: bytes) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        raise StateError(f"{path} exists: remove it first, or name another --bundle") from None
    try:
        with open(fd, "wb") as file:
            file.write(content)
    except BaseException:
        os.unlink(path)
        raise
