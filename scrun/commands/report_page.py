"""The page of `scrun report`: one file of HTML that loads nothing, with bars that need no colour.

What it shows may come from an image: all of it is escaped. If something was overlooked, the page's
policy still runs no script and asks no other machine.
"""

import html
from collections.abc import Iterable, Sequence

from scrun.core.text import printable
from scrun.model.efficiency import Row

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
