"""What a container has used, as far as the kernel counts that for it alone."""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from resource import struct_rusage
    from typing import Any

_ROOT = "/sys/fs/cgroup"
_STEP = "/step_"  # of Slurm's control groups, whatever their version
_NO_LIMIT = 1 << 60  # version 1 writes a number near 1 << 63


def cgroups_of(pid: "int | str") -> "dict[str, str]":
    """Return the directories of a process's control groups, by controllers; "" is version 2.

    Args:
        pid: Its number, or "self".
    """
    found: dict[str, str] = {}
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            for line in file:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                for name in controllers.split(","):
                    found[name] = os.path.join(_ROOT, name) + path if name else _ROOT + path
    except OSError:  # it has ended
        pass
    return found


def own_cgroups(pid: int) -> "dict[str, str]":
    """Return the directories of those that a process shares neither with us nor with its parent.

    A container has some if its runtime has made them.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
    except OSError:  # it has ended
        return {}
    shared = (*cgroups_of("self").values(), *cgroups_of(parent).values())
    return {name: path for name, path in cgroups_of(pid).items() if path not in shared}


def of_process(used: "struct_rusage") -> "dict[str, Any]":
    """Return what a process and its waited-for children have used."""
    return {
        "user": used.ru_utime,
        "system": used.ru_stime,
        "memory": used.ru_maxrss * 1024,
        "memory_of": "process",
    }


def together(used: "Iterable[dict[str, Any]]") -> "dict[str, Any]":
    """Return what a container has used by its processes that the runtime has started.

    Of their memory counts that of the largest: nothing says which were there at the same time.
    """
    parts = list(used)
    if not parts:
        return {}
    whole = {name: sum(part[name] for part in parts) for name in ("user", "system")}
    return {**parts[0], **whole, "memory": max(part["memory"] for part in parts)}


def of_cgroups(directories: "Mapping[str, str]") -> "dict[str, Any]":
    """Return what has been used in control groups that are one container's."""
    return {**_processor_time(directories), **_peak(directories, "cgroup")}


def of_step(directories: "Mapping[str, str]") -> "dict[str, Any]":
    """Return the most memory that the shim's step has used, if Slurm counts it."""
    own = {name: path for name, path in directories.items() if _STEP in path}
    return _peak(own, "step")


def limit_of(directories: "Mapping[str, str]") -> "dict[str, int]":
    """Return the memory that a process's control groups leave it, and Slurm has given the step.

    With version 2 it may be that of any group above: slurmstepd limits the job's and the step's.
    """
    path = directories.get("memory", "")
    found = []
    if _STEP in path:
        found = _numbers(path + "/memory.stat", "hierarchical_memory_limit ")
    elif not path and _STEP in directories.get("", ""):
        path = directories[""]
        while os.path.exists(path + "/memory.max"):
            found += _numbers(path + "/memory.max", "")
            path = os.path.dirname(path)
    least = min(found, default=_NO_LIMIT)
    return {"limit": least} if least < _NO_LIMIT else {}


def _numbers(path: str, word: str) -> "list[int]":
    """Return the numbers after a word at the beginning of lines; "max" is not one."""
    try:
        with open(path) as file:
            rests = [line[len(word) :].strip() for line in file if line.startswith(word)]
    except OSError:
        return []
    return [int(rest) for rest in rests if rest.isdigit()]


def _processor_time(directories: "Mapping[str, str]") -> "dict[str, Any]":
    if "cpuacct" in directories:  # its parts are sampled, their sum is not
        whole, user, system = (
            _number(os.path.join(directories["cpuacct"], "cpuacct.usage" + part)) or 0
            for part in ("", "_user", "_sys")
        )
        share = user / (user + system or 1)
        return {"user": whole * share / 1e9, "system": whole * (1 - share) / 1e9} if whole else {}
    try:
        with open(os.path.join(directories[""], "cpu.stat")) as lines:
            stat = dict(line.split() for line in lines)
        return {name: int(stat[name + "_usec"]) / 1e6 for name in ("user", "system")}
    except (OSError, ValueError, KeyError):
        return {}


def _peak(directories: "Mapping[str, str]", whose: str) -> "dict[str, Any]":
    for name, file in (("memory", "memory.max_usage_in_bytes"), ("", "memory.peak")):
        if name in directories:
            peak = _number(os.path.join(directories[name], file))
            if peak is not None:
                return {"memory": peak, "memory_of": whose}
    return {}


def _number(path: str) -> "int | None":
    try:
        with open(path) as file:
            return int(file.read(32))
    except (OSError, ValueError):  # the group is gone, or this kernel does not count that
        return None


class ShortMemory:
    """The kernel's count of processes that it has killed, and how much of it has been told."""

    def __init__(self) -> None:
        ours = cgroups_of("self")
        self._file = ours.get("", "") + "/memory.events"
        if "memory" in ours:
            self._file = ours["memory"] + "/memory.oom_control"
        self._told = self._kills()

    def was_short(self) -> bool:
        """Tell whether anything was killed since the last call."""
        before, self._told = self._told, self._kills()
        return self._told > before

    def _kills(self) -> int:
        # none is known if the site limits no memory by control groups
        return sum(_numbers(self._file, "oom_kill "))
