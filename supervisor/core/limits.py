"""Resource limits (getrlimit(2)): the supervisor's own, and those of the callers' children.

A supervisor serves many calls, and has the limits of the first one. What would end or hinder all
containers is raised as far as it may be. Children have the soft limits of their own container's
`create`: Slurm hands those of `srun` on to the job.
"""

import resource

from scrun.supervisor.log.supervisor_log import log

# those that Slurm hands on (slurm.conf(5), PropagateResourceLimits), by their names in prlimit(1)
_HANDED_ON = {
    name: getattr(resource, f"RLIMIT_{name.upper()}")
    for name in (
        "as",
        "core",
        "cpu",
        "data",
        "fsize",
        "memlock",
        "nofile",
        "nproc",
        "rss",
        "stack",
    )
}
_RAISED = {
    "cpu": "processor time (ulimit -t, seconds)",
    "as": "address space (ulimit -v)",
    "data": "data (ulimit -d)",
    "fsize": "size of files (ulimit -f)",
    "nproc": "",
}
Limits = tuple[tuple[str, int], ...]


def soft_limits(pid: int = 0) -> Limits:
    """Return the soft limits of a process by name; none, if that may not be known."""
    try:
        return tuple((name, resource.prlimit(pid, kind)[0]) for name, kind in _HANDED_ON.items())
    except OSError:
        return ()


AT_START = soft_limits()
"""Those that this process had at first."""


def raise_limits() -> list[str]:
    """Raise what would end or hinder all containers; log what may not be raised.

    Returns:
        What is still limited, for people.
    """
    for name in _RAISED:
        kind = _HANDED_ON[name]
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
            "%s of whoever has started this supervisor is limited and cannot be raised; it holds "
            "for all containers: start the first one without",
            text,
        )
    return left


def still_limited() -> list[str]:
    """Return what would end or hinder all containers of a supervisor with these limits."""
    found = []
    for name, text in _RAISED.items():
        hard = resource.getrlimit(_HANDED_ON[name])[1]
        if text and hard != resource.RLIM_INFINITY:
            found.append(f"{text}: {hard}")
    return found


def words_for(limits: Limits) -> list[str]:
    """Return the options of prlimit(1) that give a child limits; none, if it has them from us."""
    words = []
    for name, soft in limits or AT_START:
        own, hard = resource.getrlimit(_HANDED_ON[name])
        infinity = resource.RLIM_INFINITY
        if hard != infinity and (soft == infinity or soft > hard):
            soft = hard
        if soft != own:
            words.append(f"--{name}={'unlimited' if soft == infinity else soft}:")
    return words
