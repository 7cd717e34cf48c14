"""scrun top: what containers, pods and pools do, on a screen that goes on, or once as a table.

The screen needs the package `textual`, which nothing else needs, and a terminal as standard input,
output and error; where there is none, a table is printed.

Records are read as for `list`. Processors and memory are those of `stats`: nodes are asked for
them while somebody looks, and only for the containers that are on the screen, unless what others
use decides which of them are.

Wire: `events ID` for each container each time; `pools`.

Errors: StateError, without the package `textual`.
"""

import heapq
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from scrun.cli.columns import columns, fitted
from scrun.cli.failure import explain
from scrun.cli.parse import Parsed, record_root
from scrun.client.find import containers
from scrun.commands import pool
from scrun.commands.events import seconds
from scrun.commands.list import Known, Row, rows
from scrun.commands.stats import AT_ONCE, Sample, asked, row_of, sample
from scrun.commands.top_rows import (
    HEAD,
    IS_OVER,
    NOTHING,
    POD_HEAD,
    SPARK,
    Figure,
    Line,
    Used,
    cells_of,
    cells_of_pod,
    chosen,
    json_of,
    line_of,
    pods_of,
)
from scrun.core.errors import ScrunError, StateError
from scrun.core.output import say

_BETWEEN_TWO = 1.0
_PAUSE = 2.0
_OTHERS = 32
"""How many containers are asked each time that are not on the screen."""


def run(parsed: Parsed) -> int:
    root, text = record_root(parsed), parsed.text("interval")
    sort, wanted = parsed.text("sort") or "cpu", parsed.text("filter") or ""
    if parsed.count("once") or parsed.text("format") or not is_screen():
        _once(parsed, root, seconds(text, _BETWEEN_TWO), sort, wanted)
        return 0
    pause = seconds(text, _PAUSE)
    try:
        from scrun.commands.top_screen import Top
    except ImportError:
        raise StateError(
            "the package textual is not installed: pip install 'scrun[top]'; "
            "`scrun top --once` needs none"
        ) from None
    from scrun.client.program import words_of

    return Top(Look(root), words_of(parsed), pause, sort, wanted).shown()


def is_screen() -> bool:
    """Tell whether there is a terminal that can be drawn on, and typed at."""
    return os.environ.get("TERM", "dumb") != "dumb" and all(map(os.isatty, range(3)))


def _once(parsed: Parsed, root: str, pause: float, sort: str, wanted: str) -> None:
    found = rows(root, containers(root))
    names = [str(row["id"]) for row in found if may_be_asked(row)]
    used: dict[str, Used] = {}
    if names:
        before, _ = asked(root, names)
        time.sleep(pause)
        for name, now in (asked(root, [*before])[0] if before else {}).items():
            used[name] = used_of(name, before[name], now)
    lines = chosen((line_of(row, used) for row in found), sort, wanted)
    nodes: list[dict[str, object]] = []
    try:
        nodes = pool.nodes_of_pools(root)
    except OSError as error:  # of the containers all is known
        explain(error, parsed)
    if parsed.text("format") == "json":
        pods = [pod._asdict() for pod in pods_of(lines)]
        told = {"containers": [json_of(line) for line in lines], "pods": pods, "pools": nodes}
        say((json.dumps(told, indent=2) + "\n").encode())
        return
    tables = [columns(HEAD, map(cells_of, lines))]
    if pods_found := pods_of(lines):
        tables.append(columns(POD_HEAD, map(cells_of_pod, pods_found)))
    if nodes:
        tables.append(columns(pool.HEAD, map(pool.cells_of, nodes)))
    text = "\n".join(tables)
    if os.isatty(1):
        text = fitted(text, os.get_terminal_size(1).columns or 80)
    say(text.encode("utf-8", "replace"))  # a path need not be UTF-8


def may_be_asked(row: Row) -> bool:
    """Tell whether a container may run, so that its nodes can say what it uses."""
    return row["status"] in ("running", "paused")


def used_of(name: str, before: Sample, now: Sample) -> Used:
    """Return what a container uses, from two answers."""
    percent = row_of(name, before, now)["cpu_percent"]
    assert percent is None or isinstance(percent, float)
    return Used(percent, now.memory, now.limit, now.threads)


class Look:
    """Looks at a root directory again and again.

    Nobody waits for a node: what a container uses is there as soon as its nodes have answered.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._known: Known = {}
        self._lines: dict[str, tuple[Row, Line]] = {}
        self.usage = Usage(root)

    def containers(self) -> list[Line]:
        found = rows(self.root, containers(self.root), known=self._known)
        self.usage.keep({str(row["id"]) for row in found if may_be_asked(row)})
        self._lines = {str(row["id"]): (row, self._line(row)) for row in found}
        return [line for _, line in self._lines.values()]

    def _line(self, row: Row) -> Line:
        """Return the line of a row: the last one, if nothing but its usage can have changed."""
        before, line = self._lines.get(str(row["id"]), (None, None))
        if line is None or before is not row:
            return line_of(row, self.usage.known)
        used = self.usage.known.get(line.id, NOTHING)
        return line if line.used is used or line.status in IS_OVER else line._replace(used=used)

    def pools(self) -> list[tuple[str, ...]]:
        return [pool.cells_of(node) for node in pool.nodes_of_pools(self.root)]


class Usage:
    """What containers use, as far as somebody has asked: `known` has the last answers, by id."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._lock = threading.Lock()
        self._waits: set[str] = set()
        self._is_closed = False
        self._asked: dict[str, float] = {}
        self._last: dict[str, Sample] = {}
        self._past: dict[str, tuple[deque[Figure], deque[Figure]]] = {}
        self.known: dict[str, Used] = {}

    def keep(self, names: set[str]) -> None:
        """Forget all other containers: they have ended."""
        with self._lock:
            for kept in (self._asked, self._last, self._past, self.known):
                for gone in kept.keys() - names:
                    kept.pop(gone)
            for new in names - self._asked.keys():
                self._asked[new] = 0.0

    def ask(self, shown: Iterable[str], *, others: bool) -> None:
        """Have those that are shown asked, and with `others` the longest unasked; do not wait."""
        with self._lock:
            if self._is_closed:
                return
            names = [name for name in shown if name in self._asked]
            if others:
                names += heapq.nsmallest(_OTHERS, self._asked, key=self._asked.__getitem__)
            for name in dict.fromkeys(names):
                if name not in self._waits:  # else its nodes have not answered yet
                    self._waits.add(name)
                    self._asked[name] = time.monotonic()
                    self._pool.submit(self._ask, name)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, name: str) -> None:
        try:
            now = sample(self._root, name)
        except (ScrunError, OSError, ValueError, LookupError, TypeError):
            now = None  # it has ended, or its nodes cannot be asked
        with self._lock:
            self._waits.discard(name)
            before = self._last.get(name)
            if now is None or name not in self._asked:
                self._last.pop(name, None)
                self.known.pop(name, None)
                return
            self._last[name] = now
            past = self._past.setdefault(name, (deque(maxlen=SPARK), deque(maxlen=SPARK)))
            used = NOTHING if before is None else used_of(name, before, now)
            past[0].append(used.cpu)
            past[1].append(now.memory)
            self.known[name] = Used(
                used.cpu, now.memory, now.limit, now.threads, *map(tuple, past)
            )
