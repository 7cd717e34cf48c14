"""The root file system of an image that scrun itself keeps: what a container writes is not kept.

The node mounts an overlay whose lower layer is the image, as it mounts those of an engine.
Everything here blocks: call it in a worker thread.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

from scrun.supervisor.staging.mounts import is_bind
from scrun.supervisor.staging.overlaid import OVERLAY, UPPER, Rootfs, lay_out
from scrun.supervisor.staging.overlay_options import Unusable, is_plain
from scrun.supervisor.staging.survey import MountPoint

if TYPE_CHECKING:
    from scrun.supervisor.staging.overlaid import Overlays


def lay_out_image(
    config: dict[str, Any],
    rootfs: str,
    empty: str,
    directory: str,
    overlays: Overlays,
    *,
    rootless: bool,
) -> None:
    """Lay out a staged bundle whose root file system is an overlay of an image.

    Args:
        config: The config.json that will run; it gets the mounts.
        rootfs: The image's root file system.
        empty: A directory beside it, for the layer that an engine would write to.
        directory: The staged bundle.
        overlays: How to ask the node.
        rootless: Whether the container has rights in a user namespace only.

    Raises:
        Unusable: It cannot be done; something may have been written.
    """
    if not (is_plain(rootfs) and is_plain(empty)):
        raise Unusable("have characters in their path that no mount can have")
    options = f"lowerdir={rootfs},upperdir={empty}" + (",userxattr" if rootless else "")
    mount = MountPoint(rootfs, "overlay", options=options)
    read_only = bool(config["root"].get("readonly"))
    wanted = list(config.get("mounts") or [])
    config["root"]["readonly"] = False
    lay_out(Rootfs(rootfs, mount, config, rootless), directory, overlays)
    config["root"]["readonly"] = read_only
    if not read_only:
        return
    for layer in config["mounts"][: len(config["mounts"]) - len(wanted)]:
        layer["options"].insert(0, "ro")
    upper = os.path.join(directory, OVERLAY, UPPER)
    for each in wanted:
        _make_mount_point(each, rootfs, upper, owners=not rootless)


def _make_mount_point(mount: dict[str, Any], rootfs: str, upper: str, *, owners: bool) -> None:
    """Make a mount point that is missing: the runtime cannot, where nothing can be written."""
    parts = [part for part in mount["destination"].split("/") if part not in ("", ".")]
    if ".." in parts or len(parts) < 2 or not os.path.isdir(os.path.join(upper, parts[0])):
        return
    is_file = is_bind(mount) and not os.path.isdir(mount["source"])
    for number in range(2, len(parts) + 1):
        there, made = (os.path.join(place, *parts[:number]) for place in (rootfs, upper))
        status = _status(there)
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
