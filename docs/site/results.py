"""The page of results: tables and plots of what tools/bench and tools/chaos have written."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[Mapping[str, Any]]


def page(directory: Path, drawings: Path) -> str:
    """Return the page in Markdown; "" if the directory has no result.

    Args:
        directory: Where the files are (`tests.stress.results` writes them).
        drawings: Where the page will be; gets a drawing in SVG for each table that has one.
    """
    files = sorted(directory.glob("*.json"), reverse=True)
    sections = [_section(json.loads(file.read_text()), drawings / file.stem) for file in files]
    if not sections:
        return ""
    head = ["# Results", "", "What the programs printed, the last one first."]
    return "\n".join([*head, *sections])


def _section(result: Mapping[str, Any], drawing: Path) -> str:
    call = " ".join([f"tools/{result['program']}", *result["arguments"]])
    facts = [f"{name} {text}" for name, text in result["machine"].items()]
    facts += [f"{name} {value}" for name, value in result["about"].items()]
    lines = ["", f"## {result['date']}: {result['program']}", "", f"`{call}`", ""]
    lines += [f"{'; '.join(facts)}."]
    for number, (title, rows) in enumerate(result["tables"].items()):
        lines += ["", f"### {title}", ""]
        path = drawing.with_name(f"{drawing.name}-{number}.svg")
        if _draw(rows, path):
            lines += [f"![{title}]({path.name})", ""]
        lines += _table(rows)
    return "\n".join(lines)


def _table(rows: Rows) -> Iterator[str]:
    if not rows:
        yield "Nothing."
        return
    yield f"| {' | '.join(rows[0])} |"
    yield "|---" * len(rows[0]) + "|"
    for row in rows:
        yield f"| {' | '.join(map(_cell, row.values()))} |"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    return f"{value:.3g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def _draw(rows: Rows, path: Path) -> bool:
    """Draw a table: ratios beside their goals as bars, columns by a size as lines.

    Returns:
        Whether it is one of these.
    """
    ratios = bool(rows) and "ratio" in rows[0]
    sizes = len(rows) > 1 and all(isinstance(next(iter(row.values())), int) for row in rows)
    if not (ratios or sizes):
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1 + 0.35 * len(rows) if ratios else 4.5), layout="constrained")
    axes = figure.subplots()
    if ratios:
        names = [f"{row['what']} / {row['against']}".replace("`", "") for row in rows]
        axes.barh(names, [row["ratio"] for row in rows], color="#3b6ea5", height=0.6)
        limits = [float(row["goal"].lstrip("≤≥ ")) for row in rows]
        axes.plot(limits, names, "|", color="#b98a1d", markersize=14, markeredgewidth=2)
        axes.set_xlabel("ratio; the mark is the goal")
        axes.invert_yaxis()
    else:
        size, *others = rows[0]
        for name in others:
            axes.plot([row[size] for row in rows], [row[name] for row in rows], "o-", label=name)
        axes.set_xlabel(size)
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.legend()
    figure.savefig(path)
    return True
