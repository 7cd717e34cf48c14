"""How well containers have used what they had, and what would have been enough. Pure.

None stands for a figure that nobody knows: percentages of several containers leave it out, and say
of how many they are.
"""

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from scrun.model.usage import Usage

_SPARE = 1.25
_GIB = 1 << 30
_SMALL = 64 << 20
_NOISE = 1.05  # clocks, and the shim's beginning


class Account(msgspec.Struct, frozen=True):
    """What is known of a container; names are "" if they are not.

    Attributes:
        day: The local date on which it was created.
        created: When that was, in RFC 3339 form.
        reason: Why it waits, or has ended.
        waited: Seconds from `create` to the start of its program, or until now.
        elapsed: Seconds since then, until its end or now.
    """

    container: str
    name: str = ""
    image: str = ""
    pod: str = ""
    day: str = ""
    job: str = ""
    status: str = "unknown"
    reason: str = ""
    exit_status: int | None = None
    created: str = ""
    waited: float | None = None
    elapsed: float | None = None
    usage: Usage = Usage()

    @property
    def had(self) -> float | None:
        """Seconds of processor time that it could have used."""
        usage = self.usage
        return usage.cpus * usage.wall if usage.cpus and usage.wall else None

    @property
    def has_cpu(self) -> bool:
        """Whether its share of processor time is known."""
        return self.had is not None and self.usage.cpu is not None

    @property
    def has_memory(self) -> bool:
        """Whether its share of memory is known, and not only that of its largest process."""
        usage = self.usage
        return bool(usage.limit) and usage.memory is not None and not self.is_least

    @property
    def is_least(self) -> bool:
        """Whether its memory is that of its largest process only."""
        return self.usage.memory_of not in ("cgroup", "step")

    def row(self) -> dict[str, Any]:
        """Return all of it, for programs."""
        usage = self.usage
        return {
            "container": self.container, "name": self.name, "image": self.image, "pod": self.pod,
            "job": self.job, "status": self.status, "reason": self.reason,
            "exit_status": self.exit_status, "created": self.created,
            "waited_seconds": _short(self.waited), "elapsed_seconds": _short(self.elapsed),
            "cpus": usage.cpus, "cpu_seconds": _short(usage.cpu),
            "cpu_percent": _percent(usage.cpu, self.had), "enough_cpus": self._enough_cpus(),
            "memory": usage.memory, "memory_of": usage.memory_of, "memory_limit": usage.limit,
            "memory_percent": _percent(usage.memory, usage.limit) if self.has_memory else None,
            "enough_memory": self._enough_memory(),
        }  # fmt: skip

    def _enough_cpus(self) -> int | None:
        usage = self.usage
        if usage.cpu is None or not usage.wall:
            return None
        return max(1, math.ceil(usage.cpu / usage.wall / _NOISE))

    def _enough_memory(self) -> int | None:
        memory, limit = self.usage.memory, self.usage.limit
        if memory is None or self.is_least or self.reason == "out-of-memory":
            return None
        wanted = max(1, math.ceil(memory * _SPARE))
        unit = _SMALL if wanted < _GIB else _GIB
        return min(-(-wanted // unit) * unit, limit or math.inf)  # type: ignore[return-value]


def total(accounts: Iterable[Account]) -> dict[str, Any]:
    """Return what several containers have used together, for programs."""
    found = [*accounts]
    cpu = [one for one in found if one.has_cpu]
    memory = [one for one in found if one.has_memory]
    waits = [one.waited for one in found if one.waited is not None]
    return {
        "containers": len(found),
        "waited_seconds": _short(sum(waits) / len(waits)) if waits else None,
        "elapsed_seconds": _sum(one.elapsed for one in found),
        "cpu_seconds": _sum(one.usage.cpu for one in cpu),
        "cpu_seconds_had": _sum(one.had for one in cpu),
        "cpu_percent": _percent(_sum(one.usage.cpu for one in cpu), _sum(one.had for one in cpu)),
        "cpu_percent_of": len(cpu),
        "memory": max((one.usage.memory or 0 for one in memory), default=None),
        "memory_percent": _percent(
            _sum(one.usage.memory for one in memory), _sum(one.usage.limit for one in memory)
        ),
        "memory_percent_of": len(memory),
    }


def _sum(figures: Iterable[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return _short(sum(known)) if known else None


def _percent(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else round(100 * part / whole, 1)


def _short(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 3)
