"""scrun features: what config.json may ask for, as JSON.

A features document after the runtime specification 1.2 (features.md, features-linux.md). It is
about the engine that a `create` with the same options and settings would take: hooks, profiles and
cgroups of config.json mean nothing on the nodes of a cluster, and are for crun or runc on this
machine. Nothing is asked of a supervisor, a cluster or a runtime: the specification wants what the
program can do, not what is to be had where it runs.

What goes through to the OCI runtime unchanged is listed where both crun 1.8 and runc 1.1 have it,
since either may be on the nodes.

Errors: SettingsError, when a settings file or a variable is wrong.
"""

import json
import os

from scrun.cli.parse import Parsed
from scrun.core.output import write
from scrun.core.pods import ANNOTATIONS as OF_PODS
from scrun.core.version import VERSION
from scrun.settings.file.load import load, merge
from scrun.settings.slurm.requests import TABLE
from scrun.settings.slurm_conf import find_slurm_conf

# what scrun.oci.config is written after; it takes every 1.x
OLDEST, NEWEST = "1.0.0", "1.2.0"

# policy.py drops them for Slurm
HOOKS = ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]

# Those of `runc features` 1.1.5 with which crun 1.8.1 mounts. crun takes acl, iversion, loud,
# silent, symfollow and their like for data of the file system (EINVAL), and fails with ratime,
# rdiratime, rnoatime, rnodiratime and rstrictatime (mount_setattr: EINVAL); each was tried.
MOUNT_OPTIONS = [
    "async", "atime", "bind", "defaults", "dev", "diratime", "dirsync", "exec", "lazytime", "mand",
    "noatime", "nodev", "nodiratime", "noexec", "nolazytime", "nomand", "norelatime",
    "nostrictatime", "nosuid", "private", "rbind", "rdev", "relatime", "remount", "rexec",
    "rnodev", "rnoexec", "rnorelatime", "rnostrictatime", "rnosuid", "ro", "rprivate", "rrelatime",
    "rro", "rrw", "rshared", "rslave", "rsuid", "runbindable", "rw", "shared", "slave",
    "strictatime", "suid", "sync", "tmpcopyup", "unbindable",
]  # fmt: skip

# not `time`, which runc 1.1 does not have
NAMESPACES = ["cgroup", "ipc", "mount", "network", "pid", "user", "uts"]

# in the order of their numbers, capability.h
CAPABILITIES = [
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID",
    "SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW",
    "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT",
    "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD",
    "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG",
    "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE",
]  # fmt: skip

# A seccomp filter goes through to the runtime. NOTIFY is missing: nobody listens on the nodes.
ACTIONS = ["ALLOW", "ERRNO", "KILL", "KILL_PROCESS", "KILL_THREAD", "LOG", "TRACE", "TRAP"]
OPERATORS = ["EQ", "GE", "GT", "LE", "LT", "MASKED_EQ", "NE"]
ARCHITECTURES = [
    "AARCH64", "ARM", "MIPS", "MIPS64", "MIPS64N32", "MIPSEL", "MIPSEL64", "MIPSEL64N32", "PPC",
    "PPC64", "PPC64LE", "S390", "S390X", "X32", "X86", "X86_64",
]  # fmt: skip

# What crun and runc do by annotations: they go through to the node's runtime. A point at the end
# makes it a prefix.
OF_RUNTIMES = ("org.criu.config", "org.systemd.property.", "run.oci.", "module.wasm.image/variant")


def run(parsed: Parsed, argv: list[str]) -> int:
    """Print the document on standard output.

    Raises:
        SettingsError: A settings file or a variable is wrong.
    """
    del argv
    document = features(_engine(parsed), privileged=os.geteuid() == 0)
    write(json.dumps(document, indent=2).encode() + b"\n")
    return 0


def features(engine: str, *, privileged: bool) -> dict[str, object]:
    """Make the features document.

    Args:
        engine: "slurm" or "local".
        privileged: Whether the caller is root: without that the container is in a user namespace,
            and no profiles, limits or id-mapped mounts are left (`supervisor.staging.policy`).
    """
    here = engine == "local"
    whole = here and privileged
    return {
        "ociVersionMin": OLDEST,
        "ociVersionMax": NEWEST,
        "hooks": HOOKS if here else [],
        "mountOptions": MOUNT_OPTIONS,
        "linux": {
            "namespaces": NAMESPACES,
            "capabilities": [f"CAP_{name}" for name in CAPABILITIES],
            # `resources` of config.json; --systemd-cgroup is ignored everywhere
            "cgroup": {"v1": whole, "v2": whole, "systemd": False, "systemdUser": False},
            "seccomp": {
                "enabled": True,
                "actions": [f"SCMP_ACT_{name}" for name in ACTIONS],
                "operators": [f"SCMP_CMP_{name}" for name in OPERATORS],
                "archs": [f"SCMP_ARCH_{name}" for name in ARCHITECTURES],
            },
            "apparmor": {"enabled": whole},
            "selinux": {"enabled": whole},
            "intelRdt": {"enabled": whole},
            # runc has it since 1.2
            "mountExtensions": {"idmap": {"enabled": False}},
        },
        "annotations": {
            "org.scrun.version": VERSION,
            "org.scrun.engine": engine,
            "org.scrun.checkpoint.enabled": "false",
        },
        "potentiallyUnsafeConfigAnnotations": [
            *(variable for variable, request in TABLE.items() if request.safe),
            "slurm.",
            *OF_PODS,
            *OF_RUNTIMES,
        ],
    }


def _engine(parsed: Parsed) -> str:
    """Tell which engine a `create` would take, as far as the settings say."""
    settings = load(os.environ, parsed.text("config-file"))
    options = {"engine": parsed.text("engine"), "slurm.conf": parsed.text("slurm-conf")}
    given = {name: value for name, value in options.items() if value}
    if "slurm.conf" in given:
        given["slurm.conf"] = os.path.abspath(given["slurm.conf"])
    settings = merge(settings, options=given, env=os.environ)
    if settings.engine == "auto":
        return "slurm" if find_slurm_conf(settings) else "local"
    return settings.engine
