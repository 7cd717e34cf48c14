"""Make untrusted text safe for a terminal, or one line of it."""


def printable_lines(text: bytes) -> bytes:
    """Escape control characters, except line ends and tabs."""
    shown = text.decode(errors="backslashreplace")
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in shown).encode()


def escaped(text: str) -> str:
    """Escape control characters in JSON of several lines."""
    if text.isprintable():
        return text
    import json

    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def printable(text: str) -> str:
    """Escape control characters: they would move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    return "; ".join(line for line in map(str.strip, text.splitlines()) if line)


def is_unicode(text: str) -> bool:
    """Tell whether a text can be encoded; text from bytes that were not UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
