"""The page of results: a table for each that tools/bench and tools/chaos wrote by `--report`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def page(directory: Path) -> str:
    """Return the page in Markdown; "" if the directory has no result.

    Args:
        directory: Where the files are (`tests.stress.results` writes them).
    """
    files = sorted(directory.glob("*.json"), reverse=True)
    sections = [_section(json.loads(file.read_text())) for file in files]
    if not sections:
        return ""
    return "\n".join(
        ["# Results", "", "What the programs printed, the last one first.", *sections]
    )


def _section(result: Mapping[str, Any]) -> str:
    call = " ".join([f"tools/{result['program']}", *result["arguments"]])
    facts = [f"{name} {text}" for name, text in result["machine"].items()]
    facts += [f"{name} {value}" for name, value in result["about"].items()]
    lines = ["", f"## {result['date']}: {result['program']}", "", f"`{call}`", ""]
    lines += [f"{'; '.join(facts)}."]
    for title, rows in result["tables"].items():
        lines += ["", f"### {title}", "", *_table(rows)]
    return "\n".join(lines)


def _table(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
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
