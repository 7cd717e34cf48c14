"""Looks at the layers of an overlay, as a container engine mounts them.

The kernel tells them in mountinfo. fuse-overlayfs tells nothing: containers-storage has written
down, in `overlay/ID/lower`, what `overlay/ID/merged` is mounted from.

An image's author may be hostile: no link in a layer is followed. Everything here blocks.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import msgspec

from scrun.supervisor.staging.overlay_options import Overlay, Unusable, is_plain, opaque, parse
from scrun.supervisor.staging.plain import layers_of
from scrun.supervisor.staging.whiteouts import ALL, REMOVED, is_set

if TYPE_CHECKING:
    from scrun.supervisor.staging.survey import MountPoint

_MOST = 400  # the kernel's limit is 500
_FUSE = "fuse.fuse-overlayfs"
_FUSES_OWN = ("user.fuseoverlayfs.opaque", "user.overlay.opaque", "trusted.overlay.opaque")
_KERNELS_OWN = "/sys/module/overlay/parameters/"


class TopLevel(msgspec.Struct, frozen=True):
    """What is in the root directory.

    Attributes:
        directories: For each directory, the numbers of the layers that it is made of, the upmost
            first; none for one where something else is mounted.
    """

    directories: dict[str, tuple[int, ...]]
    others: tuple[str, ...]


def overlay_of(mount: MountPoint, rootfs: str) -> Overlay:
    """Return the layers that a root file system is mounted from, with absolute paths.

    Raises:
        Unusable: It is neither an overlay nor a directory of podman's vfs; or a layer is missing.
    """
    if mount.point != rootfs or mount.root != "/":
        return layers_of(rootfs)
    if mount.kind == _FUSE:
        overlay = _recorded(mount.point)
    elif mount.kind == "overlay":
        overlay = parse(mount.options)
    else:
        raise Unusable(f"are not known: it is on {mount.kind}")
    why_not = overlay.why_not
    if not (overlay.users or why_not) and (name := _marks_by_default(mount.options)):
        why_not = f"are mounted with {name}=on, the kernel's default"
    if len(overlay.layers) > _MOST:
        raise Unusable(f"are too many: {len(overlay.layers)}")
    # engines shorten the options by paths that begin in the directory of all layers
    base = os.path.dirname(os.path.dirname(mount.point))
    paths = tuple(os.path.realpath(os.path.join(base, path)) for path in overlay.layers)
    for path in paths:
        if not os.path.isdir(path):
            raise Unusable(f"are not all here: {path}")
    return msgspec.structs.replace(overlay, layers=paths, why_not=why_not)


def _recorded(merged: str) -> Overlay:
    """Return what containers-storage has written down about a root file system."""
    own = os.path.dirname(merged)
    try:
        with open(os.path.join(own, "lower"), encoding="utf-8") as file:
            lower = file.read(1 << 16).split(":")
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"are not known: it is on {_FUSE}") from error
    layers = (os.path.join(own, "diff"), *filter(None, lower))
    return Overlay(layers, users=False, why_not="are mounted by fuse-overlayfs", by_fuse=True)


def _marks_by_default(options: str) -> str:
    """Return what makes files of layers that only the same mount can read, or ""."""
    for name in ("redirect_dir", "metacopy"):
        try:
            with open(_KERNELS_OWN + name, encoding="ascii") as file:
                if file.read(1) == "Y" and f",{name}=" not in options:
                    return name
        except OSError:  # overlays are older, or no module
            continue
    return ""


def top_level(rootfs: str, overlay: Overlay) -> TopLevel:
    """Return the entries of the root directory, and the layers that they are from.

    Raises:
        Unusable: Something there cannot be mounted.
    """
    device = os.lstat(rootfs).st_dev
    directories: dict[str, tuple[int, ...]] = {}
    others = []
    for name in sorted(os.listdir(rootfs)):
        status = os.lstat(os.path.join(rootfs, name))
        if not is_plain(name):
            raise Unusable(f"have a name that no mount can have: /{name!a}")
        if stat.S_ISDIR(status.st_mode):
            foreign = status.st_dev != device
            directories[name] = () if foreign else _sources(name, overlay)
        elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            others.append(name)
        else:
            raise Unusable(f"have a device, FIFO or socket: /{name}")
    return TopLevel(directories, tuple(others))


def _sources(name: str, overlay: Overlay) -> tuple[int, ...]:
    """Return the layers of a directory, as the kernel finds them."""
    marks = _FUSES_OWN if overlay.by_fuse else (opaque(users=overlay.users),) * (not overlay.plain)
    found = []
    for number, layer in enumerate(overlay.layers):
        path = os.path.join(layer, name)
        if overlay.by_fuse and os.path.lexists(os.path.join(layer, REMOVED + name)):
            break
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(status.st_mode):  # a deletion, or what hides it
            break
        found.append(number)
        if any(is_set(path, mark) for mark in marks):
            break
        if overlay.by_fuse and os.path.lexists(os.path.join(path, ALL)):
            break
    if not found:
        raise Unusable(f"do not have /{name}")
    return tuple(found)
