"""Tables for terminals."""

from scrun.core.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def columns(head: "tuple[str, ...]", rows: "Iterable[tuple[str, ...]]") -> str:
    """Align rows in columns; nothing is cut, and an empty cell becomes a dash.

    Only the last column may contain blanks.
    """
    lines = [head, *(tuple(map(printable, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ""
    for line in lines:
        padded = (f"{cell or '-':{width}}" for cell, width in zip(line, widths, strict=True))
        text += "  ".join(padded).rstrip() + "\n"
    return text
