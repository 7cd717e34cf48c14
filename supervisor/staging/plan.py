"""The input and the result of the staging policy."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from scrun.core.errors import shortened

_MOST = 1000
_MOST_MISSED = 8  # enough for one line


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a path on this machine that config.json names.

    Attributes:
        kind: The file type; "unreadable" if unknown.
        real: The path without symbolic links.
        there: The path on the nodes, if it differs: they lack the mounts that a container
            engine made for one container.
        private: Whether only this machine, or this mount namespace, has its file system: tmpfs,
            overlay.
        size: The bytes in a file, or in the regular files of a directory; a directory is
            measured only if it may be copied, and only slightly beyond the limit.
        capacity: The size in bytes of the tmpfs it is on, else 0.
    """

    kind: Literal["file", "directory", "fifo", "socket", "device", "missing", "unreadable"]
    real: str = ""
    there: str = ""
    private: bool = False
    size: int = 0
    capacity: int = 0


class Copy(msgspec.Struct, frozen=True):
    """A file or small directory to be copied to `files/NAME` of the staged bundle."""

    source: str
    name: str


class Plan(msgspec.Struct, frozen=True):
    """The result of the policy.

    Attributes:
        config: The config.json to write.
        copies: The files to copy.
        notes: A line for the log about each loss.
        missed: Options of the container engine that have no effect.
    """

    config: dict[str, Any]
    copies: tuple[Copy, ...]
    notes: tuple[str, ...]
    missed: tuple[str, ...] = ()


class Notes:
    """Collects lines for the log, and removes members of config.json with a line for each."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.missed: list[str] = []

    def miss(self, option: str) -> None:
        """Add a container engine's option without effect, for a message to the user."""
        if len(self.missed) < _MOST_MISSED:
            self.missed.append(shortened(option))
        elif len(self.missed) == _MOST_MISSED:
            self.missed.append("…")

    def add(self, line: str) -> None:
        """Add a line; an image may cause any number of lines, of any length."""
        if len(self.lines) < _MOST:
            self.lines.append(shortened(line))
        elif len(self.lines) == _MOST:
            self.lines.append("further losses are not listed")

    def drop(self, where: dict[str, Any], prefix: str, key: str, why: str) -> None:
        """Remove a member, and add a line unless it was null or empty."""
        if key not in where:
            return
        value = where.pop(key)
        if value not in (None, "", [], {}):
            self.add(f"{prefix}{key} dropped: {why}")
