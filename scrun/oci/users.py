"""Users and groups of a root file system, by its own passwd(5) and group(5).

The rules are those of engines (`GetExecUser` of github.com/opencontainers/runc/libcontainer/user):
a number needs no entry, and a name does; groups that have the user as a member count only where
the image names no group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from scrun.core.errors import ImageError
from scrun.core.inside import read_inside

_LAST = (1 << 31) - 1


class Account(NamedTuple):
    """Who runs a program; `home` is "" if nobody says."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    home: str = ""


def find_user(root: int, text: str) -> Account:
    """Find who `USER`, `USER:GROUP`, or either as a number is; "" is root.

    `root` is the descriptor of a root directory, which may be hostile.
    """
    name, _, group = text.partition(":")
    group = group.partition(":")[0]
    number = _number(name or "0")
    uid, gid, home, known = number, 0, "", ""
    for fields in _lines(root, b"/etc/passwd", 4):
        found = _number(fields[2])
        if found is not None and (found == number if number is not None else fields[0] == name):
            uid, gid, known = found, _number(fields[3]) or 0, fields[0]
            home = fields[5] if len(fields) > 5 else ""
            break
    if uid is None:
        raise ImageError(f"its /etc/passwd has no user {name!r}: name another by --user UID")
    groups: tuple[int, ...] = ()
    if group:
        gid = _group(root, group)
    elif known and ":" not in text:  # also `USER:`, as for podman
        groups = tuple(_groups_of(root, known))
    return Account(_checked(uid, text), _checked(gid, text), groups, home)


def _group(root: int, group: str) -> int:
    number = _number(group)
    if number is not None:
        return number
    for fields in _lines(root, b"/etc/group", 3):
        found = _number(fields[2])
        if fields[0] == group and found is not None:
            return found
    raise ImageError(f"its /etc/group has no group {group!r}: name another by --user UID:GID")


def _groups_of(root: int, user: str) -> Iterator[int]:
    for fields in _lines(root, b"/etc/group", 4):
        found = _number(fields[2])
        if found is not None and found <= _LAST and user in fields[3].split(","):
            yield found


def _lines(root: int, path: bytes, least: int) -> Iterator[list[str]]:
    """Yield the lines with so many fields; none if it is not a regular file."""
    try:
        content = read_inside(root, path)
    except OSError:
        return
    for line in content.decode(errors="surrogateescape").split("\n"):
        fields = line.strip().split(":")
        if len(fields) >= least:
            yield fields


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _checked(number: int, text: str) -> int:
    if number > _LAST:
        raise ImageError(f"its user {text!r} is not a number of 0 to {_LAST}: use --user UID:GID")
    return number
