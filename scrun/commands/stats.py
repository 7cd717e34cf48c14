"""scrun stats: print what running containers use, in a table or as JSON.

It asks twice, at an interval, for processor time is a rate: with `--watch` again and again. Nodes
are asked only for that.
"""

import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from scrun.cli.columns import columns, size
from scrun.cli.failure import explain
from scrun.cli.parse import Parsed, record_root
from scrun.client.find import containers, resolve
from scrun.client.reach import fetch_answer
from scrun.client.supervisors import ANSWERS
from scrun.commands.events import seconds
from scrun.core.errors import ScrunError
from scrun.core.output import is_read, say, write
from scrun.model.record import read_record

_PAUSE = 1.0
AT_ONCE = 16
_CLEAR = b"\x1b[H\x1b[J"

HEAD = ("ID", "CPU%", "TIME", "MEMORY", "LIMIT", "MEMORY%", "THREADS")


class Sample(NamedTuple):
    """What a container uses at a moment; times are seconds, of a clock of its own; sizes bytes."""

    at: float
    cpu: float
    memory: int
    limit: int | None
    threads: int


def run(parsed: Parsed) -> int:
    """Print one list, or with `--watch` one after the other while any of them runs."""
    pause = seconds(parsed.text("interval"), _PAUSE)
    root, named = record_root(parsed), _named(parsed)
    before, failures = asked(root, named)
    status = max((explain(error, parsed) for error in failures), default=0) if named else 0
    if not parsed.count("watch"):
        if before:
            time.sleep(pause)
        if before or not named:
            _show(parsed, before, asked(root, [*before])[0] if before else {})
        return status
    while (before or not named) and is_read(seconds=pause):
        now, _ = asked(root, named)
        _show(parsed, before, now)
        before = now
    return status


def _named(parsed: Parsed) -> list[str]:
    names = [] if parsed.id is None else [parsed.id, *parsed.operands]
    found = []
    for parsed.id in names:
        found.append(resolve(parsed)[0])
    return found


def asked(root: str, named: list[str]) -> tuple[dict[str, Sample], list[Exception]]:
    """Ask all that are named, or run; return those that answer, and why others do not."""
    found: dict[str, Sample] = {}
    failures: list[Exception] = []
    silent: dict[str, TimeoutError] = {}

    def ask(name: str) -> Sample:
        supervisor = os.path.realpath(os.path.join(root, name, "supervisor"))
        if error := silent.get(supervisor):
            raise error
        try:
            return sample(root, name)
        except TimeoutError as error:  # it may serve hundreds of them
            silent[supervisor] = error
            raise

    with ThreadPoolExecutor(AT_ONCE) as pool:
        names = dict.fromkeys(named or _running(root))
        answers = {name: pool.submit(ask, name) for name in names}
        for name, answer in answers.items():
            try:
                found[name] = answer.result()
            except (ScrunError, OSError) as error:
                failures.append(error)
    return found, failures


def _running(root: str) -> list[str]:
    found = []
    for name in containers(root):
        try:
            if read_record(os.path.join(root, name)).status in ("running", "paused"):
                found.append(name)
        except (OSError, ScrunError):  # it is being deleted
            continue
    return found


def sample(root: str, container: str) -> Sample:
    """Ask a container.

    Raises:
        ScrunError: It does not run, or its nodes cannot be asked.
        OSError: Its supervisor cannot be reached, or does not answer.
    """
    fields = [b"events", os.fsencode(container)]
    failed, answer = fetch_answer(os.path.join(root, container), fields, ANSWERS)
    if failed:
        raise ScrunError(answer.decode(errors="replace"))
    event = json.loads(answer)
    data, memory = event["data"], event["data"]["memory"]["usage"]
    return Sample(
        event.get("uptime") or time.monotonic(),  # an older supervisor does not say it
        data["cpu"]["usage"]["total"] / 1e9,
        memory["usage"],
        memory.get("limit"),
        data["pids"]["current"],
    )


def _show(parsed: Parsed, before: Mapping[str, Sample], now: Mapping[str, Sample]) -> None:
    rows = [row_of(name, before[name], one) for name, one in now.items() if name in before]
    watches = bool(parsed.count("watch"))
    if parsed.text("format") == "json":
        text = json.dumps(rows, indent=None if watches else 2) + "\n"
    else:
        text = columns(HEAD, map(_cells, rows))
    if watches and os.isatty(1):
        write(_CLEAR)
    say(text.encode())


def row_of(container: str, before: Sample, now: Sample) -> dict[str, object]:
    """Return what a container uses, for programs; null is not known."""
    passed = now.at - before.at
    # less than before: a process has ended that nobody has waited for
    spent = max(0.0, now.cpu - before.cpu)
    return {
        "id": container,
        "cpu_percent": round(100 * spent / passed, 1) if passed > 0 else None,
        "cpu_seconds": round(now.cpu, 2),
        "memory": now.memory,
        "limit": now.limit,
        "threads": now.threads,
    }


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    limit, percent = row["limit"], row["cpu_percent"]
    return (
        row["id"],
        "" if percent is None else f"{percent:.1f}",
        clock(row["cpu_seconds"]),
        size(row["memory"]),
        "" if limit is None else size(limit),
        "" if not limit else f"{100 * row['memory'] / limit:.1f}",
        str(row["threads"]),
    )


def clock(passed: float) -> str:
    """Format processor time as top(1) does, and with hours."""
    minutes, rest = divmod(passed, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02}:{rest:05.2f}" if hours else f"{minutes}:{rest:05.2f}"
