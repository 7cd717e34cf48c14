"""What commands list: in tables for terminals, or for programs; and the sizes and times in it."""

import json
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from scrun.cli.parse import Parsed
from scrun.core.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:  # it takes longer to import than the rest
    from scrun.model.usage import Usage

Item = TypeVar("Item")

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_AGES = ((86400, "d"), (3600, "h"), (60, "m"))


def columns(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Align rows; nothing is cut, an empty cell is a dash, only the last one may have blanks."""
    lines = [head, *(tuple(map(printable, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ""
    for line in lines:
        padded = (f"{cell or '-':{width}}" for cell, width in zip(line, widths, strict=True))
        text += "  ".join(padded).rstrip() + "\n"
    return text


def fitted(table: str, width: int) -> str:
    """Cut the lines of a table for a terminal."""
    cut = (line if len(line) <= width else line[: width - 1] + "…" for line in table.splitlines())
    return "".join(f"{line}\n" for line in cut)


def listed(
    parsed: Parsed,
    items: Iterable[Item],
    *,
    name: Callable[[Item], str],
    row: Callable[[Item], object],
    head: tuple[str, ...],
    cells: Callable[[Item], tuple[str, ...]],
) -> str:
    """List items as `--quiet` (names), `--format json` (rows) or nothing (cells) asks."""
    if parsed.count("quiet"):
        return "".join(f"{name(item)}\n" for item in items)
    if parsed.text("format") == "json":
        return json.dumps([row(item) for item in items], indent=2) + "\n"
    return columns(head, map(cells, items))


def size(number: int) -> str:
    """Format a number of bytes."""
    amount, unit = float(number), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f}{_UNITS[unit]}" if unit < 2 else f"{amount:.1f}{_UNITS[unit]}"


def age(moment: float) -> str:
    """Format the time since a moment, in its largest unit."""
    seconds = max(0, int(time.time() - moment))
    for length, unit in _AGES:
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def usage_line(usage: "Usage") -> str:
    """Return what a container has used of what it could have, in one line."""
    parts = [] if usage.wall is None else [f"{usage.wall:.1f} s"]
    if usage.cpu is not None:
        text = f"{usage.cpu:.1f} s of processor time"
        if usage.wall and usage.cpus:
            text += f" ({usage.cpu / usage.wall:.1f} of {usage.cpus:g} processors)"
        parts.append(text)
    if usage.memory is not None:
        text = f"{size(usage.memory)} of memory"
        if usage.limit:
            text += f" (of {size(usage.limit)})"
        parts.append(text)
    return f"used: {', '.join(parts)}"
