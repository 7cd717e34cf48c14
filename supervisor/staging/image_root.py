"""The root file system of an image that scrun itself keeps: what a container writes is not kept.

The node mounts an overlay whose lower layer is the image, as it mounts those of an engine.
Everything here blocks: call it in a worker thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrun.supervisor.staging.layout import Rootfs
from scrun.supervisor.staging.overlaid import LaidOut, lay_out
from scrun.supervisor.staging.overlay_options import Unusable, is_plain
from scrun.supervisor.staging.survey import MountPoint

if TYPE_CHECKING:
    from scrun.supervisor.staging.layout import Rootfs
from scrun.supervisor.staging.overlaid import Overlays


def lay_out_image(
    config: dict[str, Any],
    rootfs: str,
    empty: str,
    directory: str,
    overlays: Overlays,
    *,
    rootless: bool,
) -> LaidOut:
    """Lay out a staged bundle whose root file system is an overlay of an image.

    Args:
        config: The config.json that will run; it gets the mounts.
        rootfs: The image's root file system.
        empty: A directory beside it, for the layer that an engine would write to.
        directory: The staged bundle.
        overlays: How to ask the node.
        rootless: Whether the container has rights in a user namespace only.

    Returns:
        How the node mounts it.

    Raises:
        Unusable: It cannot be done; something may have been written.
    """
    if not (is_plain(rootfs) and is_plain(empty)):
        raise Unusable("have characters in their path that no mount can have")
    options = f"lowerdir={rootfs},upperdir={empty}" + (",userxattr" if rootless else "")
    mount = MountPoint(rootfs, "overlay", options=options)
    return lay_out(Rootfs(rootfs, mount, config, rootless), directory, overlays)
