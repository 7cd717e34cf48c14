"""scrun report: what containers have used of what they had, and how long they have waited.

It reads records, as `list` does, and asks no node and no supervisor for more. Of containers whose
records are gone only a site's audit knows, so `--audit` names that.
"""

import html
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from scrun.cli.columns import columns, fitted, size
from scrun.cli.parse import Parsed, record_root
from scrun.client.find import containers
from scrun.commands.list import job_of, rows, shortened
from scrun.commands.logs import time_option
from scrun.commands.stats import clock
from scrun.core.output import say
from scrun.core.text import printable
from scrun.core.times import of_stamp
from scrun.core.typed import convert
from scrun.model.efficiency import Row, figures, is_least, total
from scrun.model.record import CONTAINER_NAME, IMAGE_NAME, POD_NAME, exit_status
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


Word = Annotated[str, msgspec.Meta(max_length=1024)]  # of users who write to the same file


class _Line(msgspec.Struct, frozen=True):
    """A line of the audit (scrun.toml(5))."""

    event: Word
    container: Word
    created: Word
    time: Word = ""
    name: Word = ""
    image: Word = ""
    pod: Word = ""
    job: Word = ""
    status: int | None = None
    reason: Word = ""
    usage: Usage | None = None


def run(parsed: Parsed) -> int:
    by, form = parsed.text("by") or CONTAINER, parsed.text("format")
    now, root = time.time(), record_root(parsed)
    since = time_option(parsed, "since") or -math.inf
    notes: list[str] = []
    found = of_audit(parsed.text("audit"), notes)
    for listed in rows(root, containers(root)):
        row = of_record(listed, now)
        found[row["container"], row["created"]] = row
    each = [row for row in found.values() if (of_stamp(row["created"]) or 0) >= since]
    shown, sums = grouped(each, by), total(each)
    if form == "json":
        told = {"by": by, "rows": shown, "total": sums, "notes": notes}
        say(f"{json.dumps(told, indent=2)}\n".encode())
        return 0
    notes.append(summary(sums))
    head = HEAD if by == CONTAINER else (by.upper(), *HEAD_OF_SUMS)
    lines = [cells_of(row) if by == CONTAINER else cells_of_sum(row, by) for row in shown]
    if form == "html":
        text = page(head, lines, shown, notes)
    else:
        text = columns(head, lines)
        if os.isatty(1):
            text = fitted(text, os.get_terminal_size(1).columns or 80)
        text += "".join(f"{printable(note)}\n" for note in notes)
    say(text.encode("utf-8", "replace"))  # a path need not be UTF-8
    return 0


# Where it is from


def of_record(listed: Mapping[str, Any], now: float) -> Row:
    """Return what a row of `list` says."""
    told, status = listed["annotations"], listed["status"]
    created, started = of_stamp(listed["created"]), of_stamp(told.get(STARTED, ""))
    is_over = status not in ("creating", "created", "running", "paused")
    waits = PENDING in told and not is_over
    usage = read_usage(told) or Usage()
    line = _Line(
        "", listed["id"], listed["created"], name=told.get(CONTAINER_NAME, ""),
        image=told.get(IMAGE_NAME, ""), pod=told.get(POD_NAME, ""),
        job=job_of(told), usage=usage, status=exit_status(told),
        reason=told.get(PENDING if waits else "org.scrun.reason", ""),
    )  # fmt: skip
    begin = now if started is None and waits else started
    elapsed = usage.wall if is_over else _passed(started, now)
    return _row(line, status, _passed(created, begin), elapsed)


def of_audit(path: str | None, notes: list[str]) -> dict[tuple[str, str], Row]:
    """Return what an audit says of containers, by id and creation; `notes` gets the unread."""
    found: dict[tuple[str, str], Row] = {}
    starts: dict[tuple[str, str], float | None] = {}
    damaged = 0
    with open(os.devnull if path is None else path, "rb") as file:
        while text := file.readline(_LONGEST_LINE):
            try:
                line = convert(json.loads(text), _Line)
            except (ValueError, RecursionError, UnicodeError):
                damaged += 1
                continue
            key, at = (line.container, line.created), of_stamp(line.time)
            start = starts.get(key)
            if line.event == "start":
                starts[key] = at
            elif line.event == "create":
                found[key] = _row(line, "unknown", None, None)
            elif line.event == "end":
                wall = line.usage.wall if line.usage else _passed(start, at)
                found[key] = _row(line, "stopped", _passed(of_stamp(line.created), start), wall)
    if damaged:
        notes.append(f"{path}: {damaged} lines are not those of an audit")
    return found


def _row(line: _Line, status: str, waited: float | None, elapsed: float | None) -> Row:
    created = of_stamp(line.created)
    return {
        "container": line.container, "name": line.name, "image": line.image, "pod": line.pod,
        "day": "" if created is None else time.strftime("%Y-%m-%d", time.localtime(created)),
        "job": line.job, "status": status, "reason": line.reason, "exit_status": line.status,
        "created": line.created, "waited_seconds": waited, "elapsed_seconds": elapsed,
        **figures(line.usage or Usage(), line.reason),
    }  # fmt: skip


def _passed(begin: float | None, end: float | None) -> float | None:
    """Return seconds; None also if the clocks of two machines must have differed."""
    return None if begin is None or end is None or end < begin else round(end - begin, 3)


# How it is shown


def grouped(each: list[Row], by: str) -> list[Row]:
    """Return a row for each container, or for each group; those that had most come first."""
    if by == CONTAINER:
        return sorted(each, key=lambda row: (row["created"], row["container"]))
    groups: dict[str, list[Row]] = {}
    for row in each:
        groups.setdefault(row[by], []).append(row)
    found = [{by: name, **total(group)} for name, group in groups.items()]
    return sorted(found, key=lambda row: (by != "day" and -(row["cpu_seconds_had"] or 0), row[by]))


def summary(sums: Row) -> str:
    """Say what the percentages of all containers are, and of how many."""
    parts = [
        f"{name} {_shown(sums[f'{key}_percent'], '{}%'.format) or '-'} "
        f"({sums[f'{key}_percent_of']} known)"
        for name, key in (("CPU", "cpu"), ("memory", "memory"))
    ]
    return f"{sums['containers']} containers: {', '.join(parts)}; what is not known is left out"


def cells_of(row: Row) -> tuple[str, ...]:
    """Return the cells of `HEAD` for a container."""
    memory = _shown(row["memory"], size)
    if memory and is_least(row["memory_of"]):
        memory = f">={memory}"
    return (
        row["name"] or shortened(row["container"]), row["status"], _shown(row["cpu_percent"]),
        _shown(row["memory_percent"]), _shown(row["cpus"], "{:g}".format),
        _shown(row["enough_cpus"]), memory, _shown(row["memory_limit"], size),
        _shown(row["enough_memory"], size),
        *(_shown(row[f"{key}_seconds"], clock) for key in ("waited", "elapsed", "cpu")),
        f"{row['reason']} {_shown(row['exit_status'])}".strip(),
    )  # fmt: skip


def cells_of_sum(row: Row, by: str) -> tuple[str, ...]:
    """Return the cells of `HEAD_OF_SUMS` for a group."""
    percents = ("cpu_percent", "cpu_percent_of", "memory_percent", "memory_percent_of")
    times = ("waited_seconds", "elapsed_seconds", "cpu_seconds", "cpu_seconds_had")
    return (
        row[by], *(_shown(row[key]) for key in ("containers", *percents)),
        _shown(row["memory"], size), *(_shown(row[key], clock) for key in times),
    )  # fmt: skip


def _shown(figure: Any, form: Callable[[Any], str] = str) -> str:  # noqa: ANN401 - a number
    return "" if figure is None else form(figure)


BARS = 40
"""How many rows have bars, of those that had most."""

_FIGURES = (
    ("cpu_percent", "Processor time, of what they had"),
    ("memory_percent", "Memory at most, of its limit"),
)
_LABEL, _WIDTH, _ALL, _ROW = 260, 400, 740, 22  # in pixels
_LONGEST = 36
_SCROLLED = '<div class="scroll" role="region" aria-label="Table" tabindex="0">'
_BEGIN = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>What containers used</title>
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.4 sans-serif; margin: 2em; }
svg { display: block; max-width: 100%; height: auto; fill: currentColor; font-size: 13px; }
.had { fill: none; stroke: currentColor; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid; padding: 0.2em 0.7em; text-align: left; white-space: nowrap; }
</style>
</head>
<body>
<h1>What containers used</h1>
"""


def page(
    head: Sequence[str],
    lines: Sequence[Sequence[str]],
    rows: Sequence[Row],
    notes: Iterable[str],
) -> str:
    """Return the page; `rows` are the figures of its lines, whose first cells name them."""
    parts = [_BEGIN, *(f"<p>{_text(note)}</p>\n" for note in notes)]
    named = [(line[0], row) for line, row in zip(lines, rows, strict=True)]
    if len(rows) > BARS:
        named = sorted(named, key=lambda one: -(one[1]["cpu_seconds_had"] or 0))[:BARS]
        parts.append(f"<p>The bars are of the {BARS} that had most processor time.</p>\n")
    for key, title in _FIGURES if rows else ():
        parts.append(_figure(title, [(name, row[key]) for name, row in named]))
    parts.append(f"<h2>All of them</h2>\n{_SCROLLED}\n<table>\n<tr>")
    parts += [f'<th scope="col">{_text(name)}</th>' for name in head]
    for line in lines:
        first, *others = (_text(cell or "-") for cell in line)
        parts.append(f'</tr>\n<tr><th scope="row">{first}</th>')
        parts += [f"<td>{cell}</td>" for cell in others]
    parts.append("</tr>\n</table>\n</div>\n</body>\n</html>\n")
    return "".join(parts)


def _figure(title: str, bars: Sequence[tuple[str, float | None]]) -> str:
    """Return bars in their frames: a frame is all that it had."""
    parts = [
        f"<h2>{title}</h2>\n"
        f'<svg role="img" viewBox="0 0 {_ALL} {_ROW * len(bars)}" width="{_ALL}">\n'
        f"<title>{title}: the figures are in the table</title>\n"
    ]
    for index, (name, percent) in enumerate(bars):
        top, label = _ROW * index, name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}"
        width = _WIDTH * min(percent or 0, 100) / 100
        figure = "not known" if percent is None else f"{percent} %"
        parts.append(f'<text x="0" y="{top + 15}">{_text(label or "-")}</text>\n')
        if percent is not None:
            parts.append(
                f'<rect class="had" x="{_LABEL}" y="{top + 4}" width="{_WIDTH}" height="14"/>'
                f'<rect x="{_LABEL}" y="{top + 4}" width="{width:.1f}" height="14"/>\n'
            )
        left = _LABEL if percent is None else _LABEL + _WIDTH + 8
        parts.append(f'<text x="{left}" y="{top + 15}">{figure}</text>\n')
    return "".join(parts) + "</svg>\n"


def _text(text: str) -> str:
    return html.escape(printable(text))
