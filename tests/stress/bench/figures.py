"""Figures of a bench: medians, ratios, goals, and Markdown tables of them."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass
class Times:
    """How long each measured thing took, in seconds, by its name."""

    taken: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, what: str, seconds: float) -> None:
        self.taken[what].append(seconds)

    def median(self, *what: str) -> float:
        """Return the sum of the medians of some things, in seconds."""
        return sum(statistics.median(self.taken[name]) for name in what)

    def more(self, what: str, other: str) -> float:
        """Return the median of how much longer one thing took, each time that both were done."""
        pairs = zip(self.taken[what], self.taken[other], strict=True)
        return statistics.median(one - two for one, two in pairs)

    def table(self) -> str:
        """Return all of them as a table, in milliseconds."""
        rows = [
            [what, _ms(statistics.median(times)), _ms(min(times)), _ms(max(times)), len(times)]
            for what, times in self.taken.items()
        ]
        return table(["what", "median ms", "least", "most", "times"], rows)


@dataclass(frozen=True, slots=True)
class Goal:
    """What a ratio should be, and is.

    Attributes:
        what: What is measured.
        beside: What it is measured against.
        value: The ratio.
        limit: What it should be at most, or at least.
        at_least: Whether the limit is a lower one.
    """

    what: str
    beside: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the figure, as it is printed, is within its limit."""
        value = round(self.value, 2)
        return value >= self.limit if self.at_least else value <= self.limit

    @property
    def cells(self) -> dict[str, object]:
        """The cells of a row, by the heads of their columns, with numbers as numbers."""
        return {
            "what": self.what,
            "against": self.beside,
            "ratio": self.value,
            "goal": f"{'≥' if self.at_least else '≤'} {self.limit:g}",
            "met": self.met,
        }

    @property
    def row(self) -> list[str]:
        """The cells of a table's row."""
        sign = "≥" if self.at_least else "≤"
        limit = f"{sign} {self.limit:g}"
        return [
            self.what,
            self.beside,
            f"{self.value:.2f}",
            limit,
            "yes" if self.met else "**no**",
        ]


def goals_table(goals: Iterable[Goal]) -> str:
    return table(["what", "against", "ratio", "goal", "met"], [goal.row for goal in goals])


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [list(head), ["---"] * len(head), *([str(cell) for cell in row] for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def growth(points: Sequence[tuple[float, float]]) -> float:
    """Tell how a quantity grows: the slope of its logarithm, by least squares.

    Args:
        points: Sizes and quantities, all above zero.

    Returns:
        About 0 when it does not grow, 1 when it grows like the size, 2 like its square.
    """
    from math import log

    return statistics.linear_regression(
        [log(size) for size, _ in points], [log(quantity) for _, quantity in points]
    ).slope


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"
