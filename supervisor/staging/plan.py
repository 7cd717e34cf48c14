"""What the policy of staging is told, and what it answers."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from scrun.core.errors import shortened

_MOST = 1000
_MOST_MISSED = 8  # that is a line


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What is at a path of this machine that config.json names.

    Attributes:
        kind: "unreadable" when it cannot be known.
        real: The path without symbolic links.
        there: The path under which the nodes may have it; empty: the same. They do not have
            the mounts that an engine made for one container.
        private: It lies on a file system that only this machine, or only this mount
            namespace, has: tmpfs, overlay.
        size: Bytes in a file; bytes in the regular files of a directory, counted only where
            it might be copied, and never far beyond what would be.
        capacity: Bytes that the file system around it can hold, for a tmpfs, else 0.
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
    """The answer.

    Attributes:
        config: What to write.
        copies: What to copy.
        notes: One line for the log about each loss.
        missed: Those of them that somebody has asked the engine for, as its options.
    """

    config: dict[str, Any]
    copies: tuple[Copy, ...]
    notes: tuple[str, ...]
    missed: tuple[str, ...] = ()


class Notes:
    """Collects the lines for the log, and takes things out so that none goes without one."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.missed: list[str] = []

    def miss(self, option: str) -> None:
        """Put down that an option of the engine's has no effect: its user is told of it."""
        if len(self.missed) < _MOST_MISSED:
            self.missed.append(shortened(option))
        elif len(self.missed) == _MOST_MISSED:
            self.missed.append("…")

    def add(self, line: str) -> None:
        """Put down one line; an image may bring any number of them, of any length."""
        if len(self.lines) < _MOST:
            self.lines.append(shortened(line))
        elif len(self.lines) == _MOST:
            self.lines.append("more was lost that is not listed")

    def drop(self, where: dict[str, Any], prefix: str, key: str, why: str) -> None:
        """Remove a member; what said nothing (null, empty) goes silently."""
        if key not in where:
            return
        value = where.pop(key)
        if value not in (None, "", [], {}):
            self.add(f"{prefix}{key} dropped: {why}")
