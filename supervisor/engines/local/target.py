"""This machine as a target for containers: their limits and capabilities here."""

from __future__ import annotations

from scrun.core.capabilities import CAPABILITIES
from scrun.supervisor.contracts.target import Target
from scrun.supervisor.core.limits import hard_limits


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
        rlimits=None if raises else hard_limits(),
        capabilities=bounded,
    )


def capability_names(bits: int) -> frozenset[str]:
    """Return the names of a set of capabilities, by the kernel's numbers."""
    return frozenset(
        f"CAP_{name}" for number, name in enumerate(CAPABILITIES) if bits >> number & 1
    )


def _initial_user_namespace() -> bool:
    """Tell whether capabilities count for the whole machine, as setrlimit(2) asks."""
    with open("/proc/self/uid_map", encoding="ascii") as lines:
        return lines.read().split() == ["0", "0", "4294967295"]
