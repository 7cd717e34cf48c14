"""Mount points in a root file system that nothing can be written to, of overlays.

Of a directory that is mounted read-only, an overlay has to be so from the start. Then the runtime
can make no mount point in it, so those that are missing are made in the directory for what is
written. Everything here blocks: call it in a worker thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from scrun.supervisor.staging.mounts import is_bind

if TYPE_CHECKING:
    from collections.abc import Iterable


Find = Callable[[Sequence[str]], "os.stat_result | None"]
"""Tells what there is on a path, given as its names; None: nothing. Follows no link."""


def in_directory(rootfs: str) -> Find:
    """Return what tells what there is in a directory."""
    return lambda parts: _status(os.path.join(rootfs, *parts))


def names_in(destination: str) -> list[str]:
    """Return the names in the path of a mount point; none if it leads up."""
    parts = [part for part in destination.split("/") if part not in ("", ".")]
    return [] if ".." in parts else parts


def make_mount_points(
    mounts: Iterable[dict[str, Any]], find: Find, upper: str, *, owners: bool, whole: bool
) -> None:
    """Make those mount points that are missing.

    Args:
        find: Tells what there is in the root file system.
        whole: Whether the root directory itself is mounted; if not, only what is mounted on its
            directories, which `upper` has, cannot be written to.
    """
    for mount in mounts:
        parts = names_in(mount["destination"])
        if whole or (len(parts) > 1 and os.path.isdir(os.path.join(upper, parts[0]))):
            _make_mount_point(mount, parts, find, upper, owners=owners)


def _make_mount_point(
    mount: dict[str, Any], parts: list[str], find: Find, upper: str, *, owners: bool
) -> None:
    """Make a mount point that is missing: the runtime cannot, where nothing can be written."""
    is_file = is_bind(mount) and not os.path.isdir(mount["source"])
    for number in range(1, len(parts) + 1):
        status = find(parts[:number])
        made = os.path.join(upper, *parts[:number])
        if status is not None and not stat.S_ISDIR(status.st_mode):
            return  # a file to mount on, or a link: the runtime follows it within the container
        if os.path.lexists(made):
            continue
        if status is None and is_file and number == len(parts):
            os.close(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
            continue
        os.mkdir(made)
        if status is not None:
            if owners:
                os.chown(made, status.st_uid, status.st_gid)
            os.chmod(made, stat.S_IMODE(status.st_mode))


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
