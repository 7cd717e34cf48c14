"""Decides whether nodes can use a root file system where it is.

Everything here blocks: call it in a worker thread.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrun.oci.userns import INITIAL, maps_for, read_map
from scrun.supervisor.core.files import write
from scrun.supervisor.staging.survey import MountPoint, mount_of, on_the_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrun.oci.userns import BothIds
    from scrun.supervisor.contracts.target import Target

REMEDY = "set `scratch` in the section [staging] of scrun.toml to another directory"

_PROBE = "probe"
_NOBODY = 65534  # whoever has no id in a user namespace


def rootfs_for_nodes(
    rootfs: str,
    config: Mapping[str, Any],
    bundle: str,
    target: Target,
    mounts: list[MountPoint],
) -> tuple[str, str | None]:
    """Return the path of a root file system on the nodes.

    Args:
        rootfs: Its path without symbolic links.
        config: The submitted config.json.
        bundle: The path of the bundle without symbolic links.
        target: The nodes.
        mounts: The mounts of this mount namespace.

    Returns:
        The path; and why it has to be copied instead, or None.
    """
    there = on_the_nodes(rootfs, bundle, rootfs, mounts)
    mount = mount_of(there or rootfs, mounts)
    if there is None or mount.private:
        return rootfs, f"is on {mount.kind}, mounted only on this machine"
    # podman's keep-id gives its store, or from 5.0 on only the root file system, to a subordinate
    # id, which a map of one id lacks
    if target.rootless and not _user_reaches(there):
        return rootfs, "is not reachable for the job's user"
    has_one_user = target.ids is None or maps_for(config, target.ids) is None
    if target.rootless and has_one_user and _is_lent(os.stat(there).st_uid):
        return rootfs, "belongs to a subordinate id, which the container does not have"
    return there, None


def _user_reaches(path: str) -> bool:
    """Return whether this user could enter a directory without privileges of a namespace."""
    while True:
        status = os.stat(path)
        if status.st_uid == os.geteuid():
            enter = stat.S_IXUSR
        elif status.st_gid == os.getegid():
            enter = stat.S_IXGRP
        else:
            enter = stat.S_IXOTH
        if not status.st_mode & enter:
            return False
        if path == "/":
            return True
        path = os.path.dirname(path)


def _is_lent(uid: int) -> bool:
    """Return whether an id that this process sees is one of subuid(5)'s: rootless podman's."""
    here = read_map(Path("/proc/self/uid_map").read_text())
    others = uid not in (os.geteuid(), _NOBODY)
    return here != INITIAL and others and any(each.holds(uid) for each in here)


def owners_are_lost(directory: str, ids: BothIds) -> str:
    """Return why a copy of a root file system loses the owners of the image's files, or ""."""
    if not ids.lent:
        return "the container has one user: its root file system is copied, and belongs to you"
    probe = os.path.join(directory, _PROBE)
    write(probe, b"")
    try:
        os.chown(probe, ids.uids.known[-1].inside, ids.gids.known[-1].inside)
    except OSError as error:
        reason = f"files in {directory} cannot have other owners ({error.strerror})"
        return f"the container has one user: {reason}; {REMEDY}"
    finally:
        os.unlink(probe)
    return ""
