"""Text from anywhere, made fit for a terminal and for one line."""

import json


def printable_lines(text: bytes) -> bytes:
    """Write out what would move a terminal's cursor, but for the ends of lines and tabs."""
    shown = text.decode(errors="backslashreplace")
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in shown).encode()


def escaped(text: str) -> str:
    """Escape, in JSON of several lines, what would move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def printable(text: str) -> str:
    """Write out what would move a terminal's cursor: ids and paths come from anywhere."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """Make one line of a message that may have more."""
    return "; ".join(line for line in map(str.strip, text.splitlines()) if line)


def is_unicode(text: str) -> bool:
    """Tell whether a text can be encoded: one from bytes that were not UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
