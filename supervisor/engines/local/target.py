"""This machine as a target for containers: their limits and capabilities here."""

from __future__ import annotations

import resource

from scrun.supervisor.contracts.target import Target

# in the order of their numbers (capability.h)
_CAPABILITIES = """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
    NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO
    SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME
    SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG
    WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
"""


def local_target(*, uid: int, gid: int, maps_root: bool = False) -> Target:
    """Describe this machine and this process as a target."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        fields = dict(line.rstrip("\n").split(":\t", 1) for line in lines if ":\t" in line)
    permitted = capability_names(int(fields["CapPrm"], 16) & int(fields["CapBnd"], 16))
    rootless = uid != 0
    # a new user namespace gives every capability in it, and none outside
    bounded = None if rootless else permitted
    raises = not rootless and "CAP_SYS_RESOURCE" in permitted and _initial_user_namespace()
    return Target(
        elsewhere=False,
        uid=uid,
        gid=gid,
        rootless=rootless,
        cgroups=not rootless,
        maps_root=maps_root,
        host_only=(),
        rlimits=None if raises else _hard_limits(),
        capabilities=bounded,
    )


def capability_names(bits: int) -> frozenset[str]:
    """Return the names of a set of capabilities, by the kernel's numbers."""
    return frozenset(
        f"CAP_{name}" for number, name in enumerate(_CAPABILITIES.split()) if bits >> number & 1
    )


def _initial_user_namespace() -> bool:
    """Tell whether capabilities count for the whole machine, as setrlimit(2) asks."""
    with open("/proc/self/uid_map", encoding="ascii") as lines:
        return lines.read().split() == ["0", "0", "4294967295"]


def _hard_limits() -> dict[str, int]:
    limits = {}
    for name in dir(resource):
        if name.startswith("RLIMIT_"):
            hard = resource.getrlimit(getattr(resource, name))[1]
            # the runtime-spec uses unsigned numbers, and the largest one for no limit
            limits[name] = hard if hard != resource.RLIM_INFINITY else (1 << 64) - 1
    return limits
