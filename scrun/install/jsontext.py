"""Members of JSON objects put into a text and taken out, with all else left as it stands.

A file that people edit has their order, indentation and line breaks; reading it and writing it
anew would lose them. Pure.
"""

import json
from typing import NamedTuple

from scrun.core.errors import SettingsError

_DECODER = json.JSONDecoder()
_BLANK = " \t\r\n"
_INDENT = "    "


class Member(NamedTuple):
    """One member of an object: its name, where it begins, its value begins, and it ends."""

    name: str
    start: int
    value: int
    end: int


def check(text: str, path: str) -> dict[str, object]:
    """Read a text that has to be one object, without a name that comes twice in any.

    Raises:
        SettingsError: It is not; `path` names the file.
    """

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise SettingsError(f"{path}: a name comes twice in an object; leave one of them out")
        return found

    try:
        content = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: not JSON, so left alone: {error}") from error
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: not a JSON object, so left alone")
    return content


def members(text: str, start: int) -> list[Member]:
    """List the members of the object that begins at `start`; the text is valid JSON."""
    found = []
    position = _skip(text, start + 1)
    while text[position] != "}":
        name, end = _DECODER.raw_decode(text, position)
        value = _skip(text, _skip(text, end) + 1)
        _, end = _DECODER.raw_decode(text, value)
        found.append(Member(name, position, value, end))
        position = _skip(text, end)
        if text[position] == ",":
            position = _skip(text, position + 1)
    return found


def member(text: str, start: int, name: str) -> Member | None:
    """Find one member of the object that begins at `start`."""
    return next((found for found in members(text, start) if found.name == name), None)


def begin(text: str) -> int:
    """Tell where the outermost object begins."""
    return _skip(text, 0)


def insert(text: str, start: int, name: str, value: object) -> str:
    """Put a member at the end of the object that begins at `start`, in the style that it has.

    An empty object within another gets it on the same line, with a blank after it: `remove`
    knows by that blank that the object was there before.
    """
    there = members(text, start)
    if there:
        before = text[start + 1 : there[0].start]
        lead = before if "\n" in before else " "
        place, head, tail = there[-1].end, "," + lead, ""
    elif start == begin(text):
        lead, tail = "\n" + _INDENT, "\n"
        place, head = start + 1, lead
    else:
        lead, place, head, tail = "", start + 1, "", " "
    return text[:place] + head + _render(name, value, lead) + tail + text[place:]


def remove(text: str, start: int, name: str) -> tuple[str, bool]:
    """Take a member out: what `insert` did, undone, or one that somebody else wrote.

    Returns:
        The text, and whether the object is empty now and was not so before `insert`.
    """
    there = members(text, start)
    index = next(i for i, found in enumerate(there) if found.name == name)
    gone = there[index]
    if index:
        return text[: there[index - 1].end] + text[gone.end :], False
    if len(there) > 1:
        return text[: gone.start] + text[there[1].start :], False
    rest = text[gone.end :]
    on_lines = "\n" in text[start + 1 : gone.start]
    had_blank = not on_lines and rest.startswith(" ")
    if on_lines:
        rest = rest.removeprefix("\n")
    elif had_blank:
        rest = rest[1:]
    return text[: start + 1] + rest, not had_blank


def _render(name: str, value: object, lead: str) -> str:
    indent = lead.rpartition("\n")[2]
    if "\n" not in lead:
        return f"{json.dumps(name)}: {json.dumps(value)}"
    text = json.dumps(value, indent=indent or _INDENT)
    return f"{json.dumps(name)}: " + text.replace("\n", "\n" + indent)


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in _BLANK:
        position += 1
    return position
