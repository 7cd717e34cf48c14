"""Finds the files of an image that one user of a node could not use.

In a container with one user, files of other users belong to nobody: they can be neither written
nor removed, and those for their owner alone cannot be read. Images have few of them. Everything
here blocks: call it in a worker thread.
"""

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec

from scrun.core.whole_files import write_whole
from scrun.supervisor.staging.copies import MOST, is_foreign
from scrun.supervisor.staging.overlay_options import Unusable
from scrun.supervisor.staging.whiteouts import is_deletion

_KNOWN = 400  # layers


class _LayerOwners(msgspec.Struct, frozen=True):
    """What a layer had when it was looked through.

    Attributes:
        mark: Inode, change and status change of its directory; an image's layers do not change.
        paths: The entries of others.
        closed: Their directories that not everybody may look into.
    """

    mark: tuple[int, int, int]
    paths: tuple[bytes, ...]
    closed: tuple[bytes, ...]


class Foreign(msgspec.Struct, frozen=True):
    """What belongs to others in some layer: see `_Known`."""

    paths: frozenset[bytes]
    closed: frozenset[bytes]


def foreign_in(layers: Sequence[str], cache: str, *, changes: bool) -> Foreign:
    """Return what belongs to others in any layer.

    Args:
        layers: The directories.
        cache: The file for the answers.
        changes: Whether the first one is a container's own, which may change.

    Raises:
        Unusable: They are too many.
    """
    known = _read(cache)
    found = [_look_through(layer) for layer in layers[:changes]]
    new = False
    for layer in layers[changes:]:
        if layer not in known or known[layer].mark != _mark(layer):
            known[layer] = _look_through(layer)
            new = True
        found.append(known[layer])
    if new:
        _write(cache, {path: one for path, one in known.items() if os.path.isdir(path)})
    foreign = Foreign(
        frozenset(path for one in found for path in one.paths),
        frozenset(path for one in found for path in one.closed),
    )
    if len(foreign.paths) > MOST:
        raise Unusable(f"have more than {MOST} files of other users, and the container has one")
    return foreign


def _mark(layer: str) -> tuple[int, int, int]:
    status = os.stat(layer)
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _look_through(layer: str) -> _LayerOwners:
    """Return what belongs to others in a layer, and hardly more than the limit."""
    found: list[bytes] = []
    closed: list[bytes] = []
    mark = _mark(layer)
    root = os.fsencode(layer)
    todo = [root]
    while todo and len(found) <= MOST:
        with os.scandir(todo.pop()) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    todo.append(entry.path)
                if is_foreign(status) and not is_deletion(status):
                    found.append(entry.path[len(root) + 1 :])
                    if stat.S_ISDIR(status.st_mode) and status.st_mode & 0o005 != 0o005:
                        closed.append(found[-1])
    return _LayerOwners(mark, tuple(found), tuple(closed))


def _read(cache: str) -> dict[str, _LayerOwners]:
    try:
        return msgspec.json.decode(Path(cache).read_bytes(), type=dict[str, _LayerOwners])
    except (OSError, msgspec.DecodeError):
        return {}


def _write(cache: str, known: dict[str, _LayerOwners]) -> None:
    """Write the cache; a failure costs only another look next time."""
    latest = dict(list(known.items())[-_KNOWN:])
    with contextlib.suppress(OSError, UnicodeEncodeError):
        os.makedirs(os.path.dirname(cache), mode=0o700, exist_ok=True)
        write_whole(cache, msgspec.json.encode(latest))
