"""scrun features: what config.json may ask for, as JSON.

A features document of the runtime specification 1.2 (features.md, features-linux.md). It describes
the engine that a `create` with the same options and settings would use: hooks, profiles and
cgroups of config.json have no effect on the nodes of a cluster, and work only with crun or runc on
this machine. It asks no supervisor, cluster or runtime: the specification wants to know what the
program can do, not what is available where it runs.

What the OCI runtime gets unchanged is listed if both crun 1.8 and runc 1.1 have it, since either
may be on the nodes.
"""

import json
import os

from scrun.cli.parse import Parsed, typed_settings
from scrun.core.capabilities import CAPABILITIES
from scrun.core.output import write
from scrun.core.pods import ANNOTATIONS as OF_PODS
from scrun.core.version import VERSION
from scrun.settings.file.load import load, merge
from scrun.settings.slurm.requests import TABLE
from scrun.settings.slurm_conf import find_slurm_conf

# the versions that scrun.oci.config follows; it accepts every 1.x
OLDEST, NEWEST = "1.0.0", "1.2.0"

# policy.py drops them for Slurm
HOOKS = ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]

# Those of `runc features` 1.1.5 that crun 1.8.1 can mount with. crun passes acl, iversion, loud,
# silent, symfollow and similar ones to the file system as data (EINVAL), and fails with ratime,
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

# The runtime gets the seccomp filter unchanged. NOTIFY is missing: nobody listens on the nodes.
ACTIONS = ["ALLOW", "ERRNO", "KILL", "KILL_PROCESS", "KILL_THREAD", "LOG", "TRACE", "TRAP"]
OPERATORS = ["EQ", "GE", "GT", "LE", "LT", "MASKED_EQ", "NE"]
ARCHITECTURES = [
    "AARCH64", "ARM", "MIPS", "MIPS64", "MIPS64N32", "MIPSEL", "MIPSEL64", "MIPSEL64N32", "PPC",
    "PPC64", "PPC64LE", "S390", "S390X", "X32", "X86", "X86_64",
]  # fmt: skip

# annotations for crun and runc, which the node's runtime gets; with a point at the end: a prefix
OF_RUNTIMES = ("org.criu.config", "org.systemd.property.", "run.oci.", "module.wasm.image/variant")


def run(parsed: Parsed) -> int:
    document = features(_engine(parsed), privileged=os.geteuid() == 0)
    write(json.dumps(document, indent=2).encode() + b"\n")
    return 0


def features(engine: str, *, privileged: bool) -> dict[str, object]:
    """Make the features document for "slurm" or "local".

    Unless the caller is root, the container is in a user namespace, without profiles, limits or
    id-mapped mounts (`supervisor.staging.policy`).
    """
    local = engine == "local"
    whole = local and privileged
    return {
        "ociVersionMin": OLDEST,
        "ociVersionMax": NEWEST,
        "hooks": HOOKS if local else [],
        "mountOptions": MOUNT_OPTIONS,
        "linux": {
            "namespaces": NAMESPACES,
            "capabilities": [f"CAP_{name}" for name in CAPABILITIES],
            # `resources` of config.json; systemd makes cgroups that cgroupsPath asks it for
            "cgroup": {"v1": whole, "v2": whole, "systemd": whole, "systemdUser": whole},
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
    """Return the engine that a `create` would use, as far as the settings say."""
    settings = load(os.environ, parsed.text("config-file"))
    settings = merge(settings, options=typed_settings(parsed, os.getcwd()), env=os.environ)
    if settings.engine == "auto":
        return "slurm" if find_slurm_conf(settings) else "local"
    return settings.engine
