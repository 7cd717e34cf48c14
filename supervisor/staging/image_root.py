"""The root file system of an image that scrun itself keeps: what a container writes is not kept.

The node mounts an overlay whose lower layer is the image, as it mounts those of an engine.
Everything here blocks: call it in a worker thread.
"""

from __future__ import annotations

import os
from typing import Any

from scrun.images.squashfs import linked_in
from scrun.images.store import EMPTY
from scrun.supervisor.staging.image_store import copying
from scrun.supervisor.staging.layout import Rootfs
from scrun.supervisor.staging.overlaid import LaidOut, Overlays, lay_out
from scrun.supervisor.staging.overlay_options import Unusable, is_plain
from scrun.supervisor.staging.own_file import UNPACK, OwnFile
from scrun.supervisor.staging.packing import Packing
from scrun.supervisor.staging.survey import MountPoint


def lay_out_image(
    config: dict[str, Any],
    rootfs: str,
    bundle: str,
    directory: str,
    overlays: Overlays,
    *,
    rootless: bool,
) -> LaidOut:
    """Lay out a staged bundle whose root file system is an overlay of an image.

    Args:
        config: The config.json that will run; it gets the mounts.
        rootfs: The image's root file system; of a user's squashfs file, its root directory.
        bundle: The image's directory in the store; it has one that is empty, for the layer that an
            engine would write to.
        directory: The staged bundle.
        overlays: How to ask the node.
        rootless: Whether the container has rights in a user namespace only.

    Returns:
        How the node mounts it.

    Raises:
        Unusable: It cannot be done; something may have been written.
    """
    empty = os.path.join(bundle, EMPTY)
    if not (is_plain(rootfs) and is_plain(empty)):
        raise Unusable("have characters in their path that no mount can have")
    options = f"lowerdir={rootfs},upperdir={empty}" + (",userxattr" if rootless else "")
    mount = MountPoint(rootfs, "overlay", options=options)
    own = None
    if file := linked_in(bundle):
        if overlays.images is None or not is_plain(overlays.images.path):
            raise Unusable("cannot be had without a store of images")
        packing = Packing(overlays.mounter, overlays.images.format, mine=True)
        own = OwnFile(file, os.path.basename(bundle), overlays.images, packing)
    return lay_out(Rootfs(rootfs, mount, config, rootless), directory, overlays, own)


def copy_command(rootfs: str, file: str, copied: str, *, owners: bool) -> tuple[str, ...]:
    """Return the command that copies a root file system, or unpacks the file that it is.

    With only one user, all files should belong to that user. Otherwise a server could not write
    its data directory, which belongs to another user of the image.
    """
    if file:
        return (*copying(UNPACK), file, copied)
    preserve = () if owners else ("--no-preserve=ownership",)
    # "--": the path may begin with a dash; "/.": the content, even if the path is a link
    options = ("-a", *preserve, "--reflink=auto", "--one-file-system", "--")
    return ("cp", *options, os.path.join(rootfs, "."), copied)
