"""What came out of a run: progress, the table, the failures."""

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TextIO

from tests.harness.machine import machine
from tests.stress.chaos.census import NOT_OURS
from tests.stress.chaos.plan import Plan
from tests.stress.chaos.seen import Kind, Problem, Seen


@dataclass(frozen=True)
class Failure:
    """A container that was not right."""

    plan: Plan
    problems: list[Problem]
    notes: str
    log: str


@dataclass
class Row:
    """The containers of one fault."""

    containers: int = 0
    hit: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    worst: tuple[float, int] = (0.0, 0)
    wrong: Counter[Kind] = field(default_factory=Counter)


class Report:
    """Of a run."""

    def __init__(
        self, seed: int, containers: int, at_once: int, progress: TextIO, details: TextIO
    ) -> None:
        """Begin.

        Args:
            seed: Of the run.
            containers: How many there will be.
            at_once: How many at the same time.
            progress: Where it is told how far the run has come.
            details: Gets all that is known of each container that was not right, as soon as it is.
        """
        self.seed = seed
        self.at_once = at_once
        self.containers = containers
        self.failures: list[Failure] = []
        self.remains: dict[str, list[str]] = {}
        self._rows: dict[str, Row] = defaultdict(Row)
        self._progress = progress
        self._details = details
        self._began = time.monotonic()
        self._seconds = 0.0
        self._done = 0
        self._shown = 0.0

    def end(self) -> None:
        self._seconds = time.monotonic() - self._began

    def begin(self) -> None:
        """The containers begin."""
        self._began = time.monotonic()

    def add(self, plan: Plan, seen: Seen) -> None:
        row = self._rows[plan.fault.name]
        row.containers += 1
        self._done += 1
        if seen.hit:
            row.hit += 1
            row.worst = max(row.worst, (seen.seconds, plan.number))
        row.ends[_end(seen)] += 1
        self._show()

    def fail(self, failure: Failure) -> None:
        """Take a container in that was not right."""
        self.failures.append(failure)
        for problem in failure.problems:
            self._rows[failure.plan.fault.name].wrong[problem.kind] += 1
        self._clear()
        print(f"{failure.plan}", file=self._progress)
        for problem in failure.problems:
            print(f"    {problem.kind.value}: {problem.text}", file=self._progress)
        self._progress.flush()
        problems = "\n".join(f"{p.kind.value}: {p.text}" for p in failure.problems)
        known = f"== {failure.plan}\n{problems}\n{failure.notes}\n-- log\n{failure.log}\n"
        print(known, file=self._details, flush=True)

    def keep(self, container: Failure) -> None:
        """Keep what is known of a container that was asked for by its number."""
        print(f"{container.plan}\n{container.notes}\n{container.log}", file=self._progress)

    def left(self, left: dict[str, list[str]]) -> None:
        """Take in what is left at the end."""
        for kind, things in left.items():
            self.remains.setdefault(kind, []).extend(things)

    @property
    def good(self) -> bool:
        """Whether nothing was lost or left."""
        return not self.failures and not self.remains.keys() - NOT_OURS

    def say(self, text: str) -> None:
        """Say something about the run."""
        self._clear()
        print(f"chaos: {text}", file=self._progress, flush=True)

    def _show(self) -> None:
        now = time.monotonic()
        terminal = self._progress.isatty()
        if now - self._shown < (0.2 if terminal else 30) and self._done < self.containers:
            return
        self._shown = now
        rate = self._done / max(now - self._began, 0.001)
        text = f"{self._done} of {self.containers} containers, {rate:.1f} a second, "
        text += f"{len(self.failures)} went wrong"
        self._progress.write(f"\r\x1b[K{text}" if terminal else f"{text}\n")
        self._progress.flush()

    def _clear(self) -> None:
        if self._progress.isatty():
            self._progress.write("\r\x1b[K")

    def about(self) -> dict[str, object]:
        """Return what holds for the whole run, for `tests.stress.results`."""
        remains = {kind: len(things) for kind, things in self.remains.items()}
        return {
            "seed": self.seed,
            "containers": self._done,
            "at once": self.at_once,
            "seconds": round(self._seconds),
            "went wrong": len(self.failures),
            "left": ", ".join(f"{number} {kind}" for kind, number in remains.items()) or "nothing",
        }

    def cells(self) -> list[dict[str, object]]:
        """Return a row for each fault, for `tests.stress.results`."""
        return [
            {
                "fault": name,
                "containers": row.containers,
                "hit": row.hit,
                "worst, s": round(row.worst[0], 1),
                **{kind.value: row.wrong[kind] for kind in _COLUMNS},
            }
            for name, row in sorted(self._rows.items())
        ]

    def table(self) -> str:
        """Return what has come out, in Markdown."""
        seconds = self._seconds
        lines = [
            f"{self._done} containers in {seconds:.0f} s "
            f"({self._done / max(seconds, 0.001):.1f} a second), seed {self.seed}, "
            f"{self.at_once} at once; {len(self.failures)} went wrong.",
            ", ".join(f"{name} {text}" for name, text in machine()) + ".",
            "",
            "| fault | containers | it hit | they ended with | worst, s | leaks | statuses lost "
            "| lines lost | hangs | other |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        total = Row()
        for name in sorted(self._rows):
            row = self._rows[name]
            lines.append(_line(name, row, _ends(row)))
            total.containers += row.containers
            total.hit += row.hit
            total.worst = max(total.worst, row.worst)
            total.wrong.update(row.wrong)
        lines += [_line("**all**", total, ""), ""]
        nothing = not self.remains.keys() - NOT_OURS
        lines.append("At the end nothing was left." if nothing else "At the end this was left:")
        for kind, things in self.remains.items():
            lines += ["", _left(kind, len(things))]
            lines += [f"    {thing}" for thing in things[:20] if kind not in NOT_OURS]
        for failure in self.failures:
            again = f"`--seed {self.seed} --only {failure.plan.number}`"
            lines += ["", f"* {failure.plan} ({again})"]
            lines += [f"    {problem.kind.value}: {problem.text}" for problem in failure.problems]
        return "\n".join(lines)


_COLUMNS = (Kind.LEAK, Kind.STATUS, Kind.LINES, Kind.HANG, Kind.WORDS)


def _line(name: str, row: Row, ends: str) -> str:
    wrong = " | ".join(str(row.wrong[kind]) for kind in _COLUMNS)
    return f"| {name} | {row.containers} | {row.hit} | {ends} | {_worst(row)} | {wrong} |"


def _worst(row: Row) -> str:
    """Say how long the longest took; if that is long, which one it was."""
    seconds, number = row.worst
    return f"{seconds:.1f}" + (f" (number {number})" if seconds > 20 else "")


def _ends(row: Row) -> str:
    return ", ".join(f"{text} ({count})" for text, count in row.ends.most_common())


def _left(kind: str, count: int) -> str:
    return f"(Not by scrun: {kind}: {count}.)" if kind in NOT_OURS else f"{kind}: {count}"


def _end(seen: Seen) -> str:
    """Say in a word how a container ended."""
    if seen.create is None:
        return "hang"
    if seen.create.status:
        return "refused" if seen.create.status > 0 else "create killed"
    if seen.anchor is None:
        return "hang"
    return "own" if seen.anchor in seen.own else str(seen.anchor)
