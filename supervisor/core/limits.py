"""Resource limits (getrlimit(2)): the supervisor's own, and those of its child processes.

A supervisor serves many calls, but has the limits of the first one. It raises those that would end
or hinder all containers as far as permitted. Child processes get the soft limits of their own
container's `create`: Slurm propagates those of `srun` to the job.
"""

import os
import resource

from scrun.supervisor.log.supervisor_log import log

# what Slurm propagates (slurm.conf(5), PropagateResourceLimits), by the names of prlimit(1)
_LIMITS = (
    "as", "core", "cpu", "data", "fsize", "memlock", "nofile", "nproc", "rss", "stack",
)  # fmt: skip
_PROPAGATED = {name: getattr(resource, f"RLIMIT_{name.upper()}") for name in _LIMITS}
_RAISED = {
    "cpu": "processor time (ulimit -t, seconds)",
    "as": "address space (ulimit -v)",
    "data": "data (ulimit -d)",
    "fsize": "size of files (ulimit -f)",
    "nproc": "",
}
Limits = tuple[tuple[str, int], ...]


def soft_limits(pid: int = 0) -> Limits:
    """Return the soft limits of a process by name; () if we may not read them."""
    try:
        return tuple((name, resource.prlimit(pid, kind)[0]) for name, kind in _PROPAGATED.items())
    except OSError:
        return ()


def hard_limits() -> dict[str, int]:
    """Return our hard limits, by the runtime-spec's names and in its numbers."""
    limits = {}
    for name in dir(resource):
        if name.startswith("RLIMIT_"):
            hard = resource.getrlimit(getattr(resource, name))[1]
            # the runtime-spec uses unsigned numbers, and the largest one for no limit
            limits[name] = hard if hard != resource.RLIM_INFINITY else (1 << 64) - 1
    return limits


def processors_of(pid: int) -> frozenset[int]:
    """Return the processors that a process may use; none if we may not know."""
    try:
        return frozenset(os.sched_getaffinity(pid))
    except OSError:
        return frozenset()


AT_START = soft_limits()
"""The soft limits with which this process started."""


def raise_limits() -> list[str]:
    """Raise limits that would end or hinder all containers; log, and return, what cannot be."""
    for name in _RAISED:
        kind = _PROPAGATED[name]
        hard = resource.getrlimit(kind)[1]
        for most in (resource.RLIM_INFINITY, hard):  # the former takes CAP_SYS_RESOURCE
            try:
                resource.setrlimit(kind, (most, most))
                break
            except (OSError, ValueError):
                continue
    left = still_limited()
    for text in left:
        log.warning(
            "%s is limited for this supervisor and all its containers: start the first one in a "
            "shell without this limit",
            text,
        )
    return left


def raise_open_files() -> None:
    """Raise the limit of open files as far as permitted; children do not inherit that."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def still_limited() -> list[str]:
    """Return those of our limits that would end or hinder all containers of a supervisor."""
    found = []
    for name, text in _RAISED.items():
        hard = resource.getrlimit(_PROPAGATED[name])[1]
        if text and hard != resource.RLIM_INFINITY:
            found.append(f"{text}: {hard}")
    return found


def words_for(limits: Limits) -> list[str]:
    """Return the options of prlimit(1) for a child's limits; [] if it inherits them from us."""
    words = []
    for name, soft in limits or AT_START:
        own, hard = resource.getrlimit(_PROPAGATED[name])
        infinity = resource.RLIM_INFINITY
        if hard != infinity and (soft == infinity or soft > hard):
            soft = hard
        if soft != own:
            words.append(f"--{name}={'unlimited' if soft == infinity else soft}:")
    return words
