"""How well containers have used what they had, and what would have been enough. Pure.

None stands for a figure that nobody knows: percentages of several containers leave it out, and say
of how many they are.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from scrun.model.usage import Usage

Row = dict[str, Any]
"""A container, or several of them: names, and figures in seconds and bytes."""

_SPARE = 1.25
_GIB = 1 << 30
_SMALL = 64 << 20
_LEAST = 0.001
_NOISE = 1.05  # clocks, and the shim's beginning


def is_least(memory_of: str | None) -> bool:
    """Tell whether memory is that of a container's largest process only."""
    return memory_of not in ("cgroup", "step")


def figures(usage: Usage, reason: str) -> Row:
    """Return what a container has used of what it had; `reason` says why it has ended."""
    cpu, wall, memory, limit = usage.cpu, usage.wall, usage.memory, usage.limit
    had = usage.cpus * wall if usage.cpus and wall else None
    least = is_least(usage.memory_of)
    is_enough = not least and reason != "out-of-memory"
    busy = None if cpu is None or not wall or wall < _LEAST else cpu / wall / _NOISE
    return {
        "cpus": usage.cpus,
        "cpu_seconds": _short(cpu),
        "cpu_seconds_had": _short(had),
        "cpu_percent": _percent(cpu, had),
        "enough_cpus": None if busy is None else max(1, math.ceil(busy)),
        "memory": memory,
        "memory_of": usage.memory_of,
        "memory_limit": limit,
        "memory_percent": None if least else _percent(memory, limit),
        "enough_memory": _enough(memory, limit) if is_enough else None,
    }


def _enough(memory: int | None, limit: int | None) -> int | None:
    if memory is None:
        return None
    wanted = max(1, math.ceil(memory * _SPARE))
    unit = _SMALL if wanted < _GIB else _GIB
    rounded = -(-wanted // unit) * unit
    return min(rounded, limit or rounded)


def total(rows: Iterable[Row]) -> Row:
    """Return what several containers have used together."""
    found = [*rows]
    cpu = [row for row in found if row["cpu_percent"] is not None]
    memory = [row for row in found if row["memory_percent"] is not None]
    waits = _known(found, "waited_seconds")
    spent, had = _sum(cpu, "cpu_seconds"), _sum(cpu, "cpu_seconds_had")
    return {
        "containers": len(found),
        "waited_seconds": _short(sum(waits) / len(waits)) if waits else None,
        "elapsed_seconds": _sum(found, "elapsed_seconds"),
        "cpu_seconds": spent,
        "cpu_seconds_had": had,
        "cpu_percent": _percent(spent, had),
        "cpu_percent_of": len(cpu),
        "memory": max(_known(memory, "memory"), default=None),
        "memory_percent": _percent(_sum(memory, "memory"), _sum(memory, "memory_limit")),
        "memory_percent_of": len(memory),
    }


def _known(rows: Sequence[Row], key: str) -> list[float]:
    return [row[key] for row in rows if row[key] is not None]


def _sum(rows: Sequence[Row], key: str) -> float | None:
    known = _known(rows, key)
    return _short(sum(known)) if known else None


def _percent(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole or whole < _LEAST else round(100 * part / whole, 1)


def _short(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 3)
