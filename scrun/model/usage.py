"""What a container has used, and what it could have. Pure.

None stands for a figure that nobody knows, which is not zero.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from scrun.core.typed import decode_as

USAGE = "org.scrun.usage"
"""The annotation of a container that has ended, with a `Usage` as JSON."""

STARTED = "org.scrun.started"
"""The annotation that says when a container's program began."""

Figure = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
MemoryOf = Literal["cgroup", "step", "process"]

_MEMORY_OF: Sequence[MemoryOf] = ("process", "step", "cgroup")  # the least exact one first
_CPUS = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a container has used: seconds of processor time, in user mode and in the kernel.

    `memory` is bytes at most, `memory_of` whose: those of its control group, of the step's, which
    has had no other container, or of its largest process. It took `wall` seconds; it could use
    `cpus` processors and `limit` bytes.
    """

    user: Figure | None = None
    system: Figure | None = None
    memory: Bytes | None = None
    memory_of: MemoryOf | None = None
    wall: Figure | None = None
    cpus: Figure | None = None
    limit: Bytes | None = None

    @property
    def cpu(self) -> float | None:
        return None if self.user is None or self.system is None else self.user + self.system


def read_usage(annotations: Mapping[str, str]) -> Usage | None:
    try:
        return decode_as(annotations[USAGE], Usage)
    except (KeyError, UnicodeEncodeError, msgspec.DecodeError):
        return None


def of_tasks(tasks: Iterable[Usage | None]) -> Usage | None:
    """Return what tasks have used together, if all is known; their memory is added up."""
    found = [*tasks]
    known = [task for task in found if task is not None]
    if not known or len(known) < len(found):
        return None
    whose = {task.memory_of for task in known}
    walls = [task.wall for task in known if task.wall is not None]
    return Usage(
        user=_sum([task.user for task in known]),
        system=_sum([task.system for task in known]),
        memory=_sum([task.memory for task in known]),
        memory_of=next((name for name in _MEMORY_OF if name in whose), None),
        wall=max(walls, default=None),
        limit=known[0].limit if len(known) == 1 else None,  # tasks of a node have one together
    )


def _sum(figures: Sequence[Any]) -> Any:  # noqa: ANN401 - of one type
    return None if None in figures else sum(figures)


def given(
    environment: Mapping[str, str], resources: Mapping[str, Any]
) -> tuple[float | None, int | None]:
    """Return the processors and bytes of memory of a job's variables, or `linux.resources`."""
    found = [*_CPUS.finditer(environment.get("SLURM_JOB_CPUS_PER_NODE", ""))]
    cpus: float | None = sum(int(one[1]) * int(one[2] or 1) for one in found) or None
    per_node = _number(environment.get("SLURM_MEM_PER_NODE"))
    nodes = sum(int(one[2] or 1) for one in found)
    per_cpu = _number(environment.get("SLURM_MEM_PER_CPU"))
    mebibytes = per_node * nodes or per_cpu * int(cpus or 0)
    cpu, memory = (_object(resources.get(name)) for name in ("cpu", "memory"))
    quota, period = (_positive(cpu.get(name)) for name in ("quota", "period"))
    if quota and period:
        cpus = quota / period
    return cpus, mebibytes << 20 or _positive(memory.get("limit")) or None


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _positive(value: object) -> int:
    return value if isinstance(value, int) and 0 < value <= 1 << 60 else 0


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 13 else 0
