"""Looks for processes in /proc, sends them signals, and binds them to processors."""

import _signal as signal  # without enum, which takes longer than hello
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Container
    from typing import Any


_EXITING = 4  # PF_EXITING of the kernel's include/linux/sched.h; before files are closed

_CAP_SYS_RESOURCE = 24  # of the kernel's include/uapi/linux/capability.h


def children_of(pid: int) -> "list[int]":
    """Return the children of a process, as far as they can be read."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:  # it has ended
        pass
    return found


def descendants(pid: int, apart: "Container[int]" = ()) -> "list[int]":
    """Return the children of a process, their children, and so on.

    Args:
        apart: Processes that do not count, nor do their descendants.
    """
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = [child for child in children_of(waiting.pop()) if child not in apart]
        found += children
        waiting += children
    return found


def is_ending(pid: int) -> bool:
    """Tell whether a child of ours, not yet reaped, is on its way out or over."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return True
    return state in (b"Z", b"X") or bool(int(fields[5]) & _EXITING)


def is_called_with(pid: int, word: str) -> bool:
    """Tell whether a process has a word among its arguments; it has those of who forked it."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.fsencode(word) in file.read().split(b"\0")
    except OSError:
        return False


def handles(pid: int, number: int) -> bool:
    """Tell whether a process catches, ignores or blocks a signal, so that it goes on."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return goes_on(file.read(), number)
    except OSError:
        return False


def goes_on(status: bytes, number: int) -> bool:
    """Tell whether a process with such a status (proc(5)) goes on after a signal. Pure."""
    # its name is what it wants, except line feeds, which the kernel escapes
    lines = dict(line.split(b":", 1) for line in status.rstrip().split(b"\n"))
    if lines[b"Name"].strip().startswith(b"runc:["):  # it has handlers of its own, until it execs
        return False
    blocked, *masks = (int(lines[name], 16) for name in (b"SigBlk", b"SigIgn", b"SigCgt"))
    if not blocked >> (signal.SIGSEGV - 1) & 1:  # else it is crun at work, which blocks all
        masks.append(blocked)
    return any(mask >> (number - 1) & 1 for mask in masks)


def kill_quietly(pid: int, number: int) -> None:
    """Send a signal to a process that may have gone, or may be another user's."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def bind(pid: int, processors: "Collection[int]") -> None:
    """Bind a process, whose program has not started yet, to its creator's processors, or some.

    As with a program of srun's: crun from 1.25 on, and runc from 1.2.7 and 1.3.1 on, give it all
    processors of its control group, whatever they may use themselves. What Slurm or a launcher of
    MPI has bound, it has bound by that.

    Args:
        processors: The processors; none: leave it as it is.
    """
    try:
        if processors and os.sched_getaffinity(pid) != set(processors):
            os.sched_setaffinity(pid, processors)
    except OSError:
        pass  # it has ended, is somebody else's, or its control group has none of them


def fit_limits(process: "dict[str, Any]") -> None:
    """Lower what a process may have to what we may have, so that its runtime can set it."""
    asked = process.get("rlimits") or process.get("oomScoreAdj")
    if not asked or _may_exceed_limits():
        return
    import resource

    for limit in process.get("rlimits") or []:
        kind = getattr(resource, limit["type"], None)
        hard = resource.RLIM_INFINITY if kind is None else resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            limit["hard"] = min(limit["hard"], hard)
            limit["soft"] = min(limit["soft"], limit["hard"])
    if process.get("oomScoreAdj"):
        with open("/proc/self/oom_score_adj") as file:
            process["oomScoreAdj"] = max(process["oomScoreAdj"], int(file.read()))


def _may_exceed_limits() -> bool:
    with open("/proc/self/status", "rb") as file:
        effective = next(line for line in file if line.startswith(b"CapEff:"))
    return bool(int(effective.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)


def bind_exec(process: "dict[str, Any]", processors: "Collection[int]") -> None:
    """Bind one more program in a container to these processors.

    Older runtimes do not read it, and pass on their own.
    """
    process["execCPUAffinity"] = {"final": ",".join(map(str, sorted(processors)))}
