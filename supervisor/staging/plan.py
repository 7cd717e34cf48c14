"""The input and the result of the staging policy."""

from __future__ import annotations

import os.path
from typing import Any, Literal

import msgspec

from scrun.core.errors import shortened

_MOST = 1000
_MOST_MISSED = 8  # enough for one line


class MountSource(msgspec.Struct, frozen=True, kw_only=True):
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
        capacity: The size in bytes of the tmpfs that is mounted there, else 0.
        own: Whether the container's engine made it for this container alone.
    """

    kind: Literal["file", "directory", "fifo", "socket", "device", "missing", "unreadable"]
    real: str = ""
    there: str = ""
    private: bool = False
    size: int = 0
    capacity: int = 0
    own: bool = False


DATA = "data"
"""The directory of a volume with its copy."""


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """A mount whose source only this machine has, so that the container has a copy.

    Attributes:
        destination: Where the container mounts it.
        source: Its path here.
        place: The directory that has the copy.
    """

    destination: str
    source: str
    place: str
    is_file: bool
    read_only: bool
    shared: bool

    @property
    def comes_back(self) -> bool:
        """Whether its user looks for changes here, and not only the engine."""
        return self.shared and not self.read_only

    @property
    def data(self) -> str:
        """The path of the copy."""
        return data_in(self.place, self.source, is_file=self.is_file)


def data_in(place: str, source: str, *, is_file: bool) -> str:
    """Return the path of a copy."""
    return os.path.join(place, DATA, *[os.path.basename(source)] * is_file)


class Plan(msgspec.Struct, frozen=True):
    """The result of the policy.

    Attributes:
        notes: A line for the log about each loss.
        missed: Options of the container engine that have no effect.
    """

    config: dict[str, Any]
    volumes: tuple[Volume, ...]
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
