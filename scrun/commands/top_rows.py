"""What `scrun top` says of containers and pods: lines, sorted and in columns. Pure."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scrun.cli.columns import age, size
from scrun.commands.list import information, job_of, shortened
from scrun.core.pods import BY_HAND
from scrun.core.text import printable
from scrun.core.times import of_stamp
from scrun.model.record import CONTAINER_NAME, IMAGE_NAME, POD_NAME
from scrun.model.waiting import PENDING, explain

_LEVELS = "▁▂▃▄▅▆▇█"
SPARK = 8
"""How many looks a sparkline has."""

IS_OVER = ("stopped", "unknown")

Figure = float | int | None


class Used(NamedTuple):
    """What a container uses: percent of one processor, bytes; None is not known."""

    cpu: float | None = None
    memory: int | None = None
    limit: int | None = None
    threads: int | None = None
    cpus: Sequence[Figure] = ()
    memories: Sequence[Figure] = ()


class Line(NamedTuple):
    """What is said of a container.

    Attributes:
        id: The whole id, of which `name` may be what engines show.
        created: Seconds since the epoch; None if that is not known.
        waits: Slurm's reason, while its job is pending.
        info: What it waits for, or how it ended.
        stamp: When it was created, as the record says it: with the id, it names one container.
    """

    id: str
    name: str
    pod: str
    status: str
    created: float | None
    waits: str
    job: str
    nodes: str
    image: str
    info: str
    stamp: str
    used: Used


NOTHING = Used()


def line_of(row: Mapping[str, Any], used: Mapping[str, Used]) -> Line:
    """Return what a row of `list` says, and what is known of its usage."""
    told, status, identity = row["annotations"], row["status"], row["id"]
    is_over = status in IS_OVER
    return Line(
        id=identity,
        name=told.get(CONTAINER_NAME) or shortened(identity),
        pod=told.get(POD_NAME) or told.get(BY_HAND) or "",
        status=status,
        created=of_stamp(row["created"]),
        waits="" if is_over else told.get(PENDING, ""),
        job=job_of(told),
        nodes=told.get("org.scrun.nodes", ""),
        image=told.get(IMAGE_NAME, ""),
        info=information(status, told),
        stamp=row["created"],
        used=NOTHING if is_over else used.get(identity, NOTHING),
    )


def _or_last(figure: Figure) -> float:
    return -1.0 if figure is None else float(figure)


SORTS: dict[str, Callable[[Line], Any]] = {
    "cpu": lambda line: -_or_last(line.used.cpu),
    "memory": lambda line: -_or_last(line.used.memory),
    "name": lambda line: line.name,
    "age": lambda line: line.created or 0.0,
    "status": lambda line: (line.status, line.waits),
}
"""What containers can be sorted by, and each one's first are those that most ask for."""


def chosen(
    lines: Iterable[Line], sort: str, text: str = "", *, backwards: bool = False
) -> list[Line]:
    """Return the lines that have a text anywhere, sorted."""
    wanted = text.casefold()
    found = [line for line in lines if not wanted or wanted in _searched(line)]
    found.sort(key=lambda line: (line.status in IS_OVER, line.id))
    found.sort(key=SORTS[sort], reverse=backwards)
    return found


def _searched(line: Line) -> str:
    fields = (
        line.name,
        line.id,
        line.pod,
        line.status,
        line.job,
        line.nodes,
        line.image,
        line.info,
    )
    return "\n".join(fields).casefold()


HEAD = ("CONTAINER", "POD", "STATUS", "CPU%", "MEMORY", "MEMORY%", "THREADS", "JOB", "NODES",
        "AGE", "INFO")  # fmt: skip


def cells_of(line: Line) -> tuple[str, ...]:
    """Return what a table says of a container; its names are those of `HEAD`."""
    used = line.used
    return (
        *(line.name, line.pod, line.status, percent(used.cpu), _bytes(used.memory)),
        *(percent(share(used)), "" if used.threads is None else str(used.threads)),
        *(line.job, line.nodes, "" if line.created is None else age(line.created), line.info),
    )


def json_of(line: Line) -> dict[str, object]:
    """Return what programs get of a container; null is not known."""
    used = line.used
    return {
        "id": line.id, "name": line.name, "pod": line.pod or None, "status": line.status,
        "cpu_percent": used.cpu, "memory": used.memory, "limit": used.limit,
        "threads": used.threads, "job": line.job or None, "nodes": line.nodes or None,
        "image": line.image or None, "created": line.created, "waits": line.waits or None,
        "info": line.info,
    }  # fmt: skip


def share(used: Used) -> float | None:
    """Return which percentage of its memory's limit a container uses."""
    return None if used.memory is None or not used.limit else 100 * used.memory / used.limit


def percent(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.1f}"


def _bytes(figure: int | None) -> str:
    return "" if figure is None else size(figure)


def spark(values: Sequence[Figure], full: float = 0) -> str:
    """Draw values, the newest last, as bars; `full` is the least value that fills one."""
    known = [value for value in values if value is not None]
    most = max([full, *known]) if known else 0.0
    shown = values[-SPARK:]
    top = len(_LEVELS) - 1
    bars = (
        " " if value is None else _LEVELS[round(top * value / most) if most else 0]
        for value in shown
    )
    return "".join(bars).rjust(SPARK)


# Pods


class Pod(NamedTuple):
    """What is said of a pod.

    Percentages and bytes that are known are added up; `waits` is Slurm's reason, if one of its
    containers waits.
    """

    name: str
    containers: int
    running: int
    cpu: float | None
    memory: int | None
    job: str
    nodes: str
    waits: str


POD_HEAD = ("POD", "CONTAINERS", "RUNNING", "CPU%", "MEMORY", "JOB", "NODES", "WAITS")


def pods_of(lines: Iterable[Line]) -> list[Pod]:
    """Add up the containers of each pod; return the pods sorted by name."""
    members: dict[str, list[Line]] = {}
    for line in lines:
        if line.pod:
            members.setdefault(line.pod, []).append(line)
    return [_pod(name, members[name]) for name in sorted(members)]


def _pod(name: str, lines: Sequence[Line]) -> Pod:
    cpus = [line.used.cpu for line in lines if line.used.cpu is not None]
    memories = [line.used.memory for line in lines if line.used.memory is not None]
    return Pod(
        name, len(lines), sum(line.status == "running" and not line.waits for line in lines),
        round(sum(cpus), 1) if cpus else None, sum(memories) if memories else None,
        *(next(filter(None, (getattr(line, key) for line in lines)), "") for key in
          ("job", "nodes", "waits")),
    )  # fmt: skip


def cells_of_pod(pod: Pod) -> tuple[str, ...]:
    """Return what a table says of a pod; its names are those of `POD_HEAD`."""
    return (
        *(pod.name, str(pod.containers), str(pod.running), percent(pod.cpu), _bytes(pod.memory)),
        *(pod.job, pod.nodes, pod.waits),
    )


# All of them


def summary(lines: Sequence[Line]) -> str:
    """Return how many containers there are of each kind, and what they use together."""
    waiting = sum(bool(line.waits) for line in lines)
    running = sum(line.status in ("running", "paused") and not line.waits for line in lines)
    over = sum(line.status == "stopped" for line in lines)
    cpu = sum(line.used.cpu or 0 for line in lines)
    memory = sum(line.used.memory or 0 for line in lines)
    return (
        f"{len(lines)} containers: {running} run, {waiting} wait, {over} stopped"
        f" | CPU {cpu:.0f}%, memory {size(memory)}"
    )


def details(line: Line) -> str:
    """Return in one line what has no room in a column: of a container that waits, why it does."""
    parts = [line.id if line.name == line.id else f"{line.name} ({line.id})"]
    parts += [line.image] if line.image else []
    if line.waits:
        since = "" if line.created is None else f", for {age(line.created)}"
        why = explain(line.waits)
        parts.append(f"{line.info}{since}" + (f" ({why})" if why else ""))
    elif line.info:
        parts.append(line.info)
    return printable(" | ".join(parts))


def fit(widths: Sequence[int], width: int, order: Sequence[int]) -> list[int]:
    """Return which columns fit, two blanks apart, by the `order` of what matters most."""
    shown = [order[0]]
    left = width - widths[order[0]]
    for number in order[1:]:
        if left - 2 - widths[number] < 0:
            continue
        left -= 2 + widths[number]
        shown.append(number)
    return sorted(shown)


def today() -> str:
    return time.strftime("%H:%M:%S")
