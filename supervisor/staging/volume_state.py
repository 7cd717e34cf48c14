"""What is known of the copy of a volume, beside it: see `supervisor.staging.volumes`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from scrun.core.errors import StagingError
from scrun.core.paths import read_regular
from scrun.core.whole_files import PART, write_whole
from scrun.supervisor.staging.plan import DATA

if TYPE_CHECKING:
    from collections.abc import Mapping

STATE = "volume.json"
_FOLDERS = "folders.json"
RECORDS = (STATE, STATE + PART, _FOLDERS, _FOLDERS + PART)
"""The files; first the one that says that the copy counts."""

_LARGEST = 1 << 20
_LARGEST_FOLDERS = 1 << 28


class VolumeState(msgspec.Struct, frozen=True):
    """A copy.

    Attributes:
        source: What it is a copy of.
        since: Changes in the copy after this time have to come back (nanoseconds; a time
            of the copy's file system).
        others_since: Changes in the source after this time are others'.
        owners: Whether owners of files count: a container that has used it had several users.
        written: Whether any container could write to it.
        conflicts: What both have changed; of what came back before.
    """

    source: str
    is_file: bool
    since: int
    others_since: int
    owners: bool
    written: bool
    conflicts: tuple[str, ...] = ()


def read_state(place: str) -> VolumeState | None:
    """Return what is known of a copy; None if it does not count.

    Raises:
        StagingError: It cannot be understood.
        OSError: It cannot be read.
    """
    if not os.path.isdir(os.path.join(place, DATA)):  # it was kept
        return None
    try:
        return msgspec.json.decode(
            read_regular(os.path.join(place, STATE), _LARGEST), type=VolumeState
        )
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise StagingError(f"{place}/{STATE}: {error}") from error


def read_folders(place: str) -> dict[str, tuple[int, int]]:
    """Return the inodes of the directories: see `bring_back.Merged`.

    Raises:
        StagingError: They cannot be understood.
        OSError: They cannot be read.
    """
    try:
        content = read_regular(os.path.join(place, _FOLDERS), _LARGEST_FOLDERS)
        return msgspec.json.decode(content, type=dict[str, tuple[int, int]])
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError as error:
        raise StagingError(f"{place}/{_FOLDERS}: {error}") from error


def write_state(place: str, state: VolumeState) -> None:
    """Make a copy count; see `VolumeState`."""
    _write(place, STATE, state)


def write_folders(place: str, folders: Mapping[str, tuple[int, int]]) -> None:
    """Keep the inodes of the directories."""
    _write(place, _FOLDERS, folders)


def _write(place: str, name: str, content: object) -> None:
    write_whole(os.path.join(place, name), msgspec.json.encode(content))
