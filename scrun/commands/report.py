"""scrun report: what containers have used of what they had, and how long they have waited.

It reads records, as `list` does, and asks no node and no supervisor for more. Of containers whose
records are gone only a site's audit knows, so `--audit` names that.

Errors: UsageError, when `--since` is not a time; OSError, when the root directory or the audit
cannot be read.
"""

import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from scrun.cli.columns import columns, fitted, size
from scrun.cli.parse import Parsed, record_root
from scrun.client.find import containers
from scrun.commands.list import rows, shortened
from scrun.commands.logs import time_option
from scrun.commands.stats import clock
from scrun.core.output import say
from scrun.core.text import printable
from scrun.core.times import moment
from scrun.core.typed import convert
from scrun.model.efficiency import Account, total
from scrun.model.record import CONTAINER_NAME, IMAGE_NAME, POD_NAME
from scrun.model.usage import STARTED, Usage, read_usage
from scrun.model.waiting import PENDING

HEAD = (
    "CONTAINER", "STATUS", "CPU%", "MEM%", "CPUS", "ENOUGH", "MEMORY", "LIMIT", "ENOUGH",
    "WAITED", "ELAPSED", "CPUTIME", "REASON",
)  # fmt: skip
HEAD_OF_SUMS = (
    "CONTAINERS", "CPU%", "OF", "MEM%", "OF", "MEMORY", "WAITED", "ELAPSED", "CPUTIME", "CPUHAD",
)  # fmt: skip
CONTAINER = "container"
_LONGEST_LINE = 1 << 20  # of the audit's


class _Line(msgspec.Struct, frozen=True):
    """A line of the audit (scrun.toml(5))."""

    event: str
    container: str
    created: str
    time: str = ""
    name: str = ""
    image: str = ""
    pod: str = ""
    job: str = ""
    status: int | None = None
    reason: str = ""
    usage: Usage | None = None


def run(parsed: Parsed) -> int:
    """Print it on standard output."""
    by = parsed.text("by") or CONTAINER
    since, now, root = time_option(parsed, "since"), time.time(), record_root(parsed)
    notes: list[str] = []
    found = of_audit(parsed.text("audit"), notes)
    for row in rows(root, containers(root)):
        account = of_record(row, now)
        found[account.container, account.created] = account
    accounts = [
        one for one in found.values()
        if since is None or (moment(one.created, now) or 0) >= since
    ]  # fmt: skip
    accounts.sort(key=lambda one: (one.created, one.container))
    sums, listed = total(accounts), lines(accounts, by)
    if parsed.text("format") == "json":
        text = json.dumps({"by": by, "rows": listed, "total": sums, "notes": notes}, indent=2)
        say(f"{text}\n".encode())
        return 0
    notes.append(summary(sums))
    head = HEAD if by == CONTAINER else (by.upper(), *HEAD_OF_SUMS)
    cells = [cells_of(row) if by == CONTAINER else cells_of_sum(row, by) for row in listed]
    text = columns(head, cells)
    if os.isatty(1):
        text = fitted(text, os.get_terminal_size(1).columns or 80)
    # a name need not be UTF-8
    say((text + "".join(f"{printable(note)}\n" for note in notes)).encode("utf-8", "replace"))
    return 0


# Where it is from


def of_record(row: Mapping[str, Any], now: float) -> Account:
    """Return what a row of `list` says."""
    told, status = row["annotations"], row["status"]
    created, started = moment(row["created"], now), moment(told.get(STARTED, ""), now)
    is_over = status not in ("creating", "created", "running", "paused")
    usage = read_usage(told) or Usage()
    since_start = None if is_over or started is None else _passed(started, now)
    waits = PENDING in told and not is_over
    exit_status = told.get("org.scrun.exit_status", "")
    return Account(
        container=row["id"], name=told.get(CONTAINER_NAME, ""), image=told.get(IMAGE_NAME, ""),
        pod=told.get(POD_NAME, ""), day=_day(created), job=told.get("org.scrun.job_id", ""),
        status=status, reason=told.get(PENDING if waits else "org.scrun.reason", ""),
        exit_status=int(exit_status) if exit_status.isascii() and exit_status.isdigit() else None,
        created=row["created"],
        waited=_passed(created, now if started is None and waits else started),
        elapsed=usage.wall if is_over else since_start, usage=usage,
    )  # fmt: skip


def of_audit(path: str | None, notes: list[str]) -> dict[tuple[str, str], Account]:
    """Return what an audit says of containers, by id and time of creation.

    Args:
        notes: Gets what cannot be read.

    Raises:
        OSError: The file cannot be read.
    """
    found: dict[tuple[str, str], Account] = {}
    starts: dict[tuple[str, str], float | None] = {}
    damaged = 0
    if path is None:
        return found
    with open(path, "rb") as file:
        while text := file.readline(_LONGEST_LINE):
            try:
                line = convert(json.loads(text), _Line)
            except (ValueError, RecursionError, UnicodeError):
                damaged += 1
                continue
            key, at, created = (line.container, line.created), *map(_at, (line.time, line.created))
            if line.event == "start":
                starts[key] = at
            elif line.event in ("create", "end"):
                is_end, usage = line.event == "end", line.usage or Usage()
                found[key] = Account(
                    container=line.container, name=line.name, image=line.image, pod=line.pod,
                    day=_day(created), job=line.job, status="stopped" if is_end else "unknown",
                    reason=line.reason, exit_status=line.status, created=line.created,
                    waited=_passed(created, starts.get(key)),
                    elapsed=usage.wall or (_passed(starts.get(key), at) if is_end else None),
                    usage=usage,
                )  # fmt: skip
    if damaged:
        notes.append(f"{path}: {damaged} lines are not those of an audit")
    return found


def _at(stamp: str) -> float | None:
    return moment(stamp, 0)


def _passed(begin: float | None, end: float | None) -> float | None:
    """Return seconds; None also if the clocks of two machines must have differed."""
    return None if begin is None or end is None or end < begin else end - begin


def _day(created: float | None) -> str:
    return "" if created is None else time.strftime("%Y-%m-%d", time.localtime(created))


# How it is shown


def lines(accounts: Iterable[Account], by: str) -> list[dict[str, Any]]:
    """Return a row for each container, or for each group; those that had most come first."""
    if by == CONTAINER:
        return [one.row() for one in accounts]
    groups: dict[str, list[Account]] = {}
    for one in accounts:
        groups.setdefault(getattr(one, by), []).append(one)
    found = [{by: name, **total(group)} for name, group in groups.items()]
    if by == "day":
        return sorted(found, key=lambda row: str(row[by]))
    return sorted(found, key=lambda row: (-(row["cpu_seconds_had"] or 0), row[by]))


def summary(sums: Mapping[str, Any]) -> str:
    """Say what the percentages of all containers are, and of how many."""
    parts = [
        f"{name} {_number(sums[f'{key}_percent'], '%')} ({sums[f'{key}_percent_of']} known)"
        for name, key in (("CPU", "cpu"), ("memory", "memory"))
    ]
    return f"{sums['containers']} containers: {', '.join(parts)}; what is not known is left out"


def cells_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of `HEAD` for a container."""
    is_least = row["memory"] is not None and row["memory_of"] not in ("cgroup", "step")
    status = row["exit_status"]
    return (
        row["name"] or shortened(row["container"]), row["status"],
        _number(row["cpu_percent"]), _number(row["memory_percent"]),
        "" if row["cpus"] is None else f"{row['cpus']:g}", _number(row["enough_cpus"]),
        ">=" * is_least + _size(row["memory"]), _size(row["memory_limit"]),
        _size(row["enough_memory"]), _clock(row["waited_seconds"]),
        _clock(row["elapsed_seconds"]), _clock(row["cpu_seconds"]),
        f"{row['reason']} {'' if status is None else status}".strip(),
    )  # fmt: skip


def cells_of_sum(row: Mapping[str, Any], by: str) -> tuple[str, ...]:
    """Return the cells of `HEAD_OF_SUMS` for a group."""
    return (
        row[by], str(row["containers"]), _number(row["cpu_percent"]), str(row["cpu_percent_of"]),
        _number(row["memory_percent"]), str(row["memory_percent_of"]), _size(row["memory"]),
        *(_clock(row[key]) for key in
          ("waited_seconds", "elapsed_seconds", "cpu_seconds", "cpu_seconds_had")),
    )  # fmt: skip


def _number(figure: float | None, unit: str = "") -> str:
    return "-" if figure is None else f"{figure}{unit}"


def _size(figure: int | None) -> str:
    return "" if figure is None else size(figure)


def _clock(figure: float | None) -> str:
    return "" if figure is None else clock(figure)
