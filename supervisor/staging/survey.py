"""Collects the properties of this machine's paths for the policy.

Everything here touches paths that a user named, and may block as long as a file system does: call
it in a worker thread.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import msgspec

from scrun.core.trees import size_of
from scrun.supervisor.contracts.target import Target
from scrun.supervisor.staging.mounts import (
    MountSource,
    below,
    binds,
    directories_of_overlay,
    only_here,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

# their files are in this machine's memory, or exist only by a mount on this machine
_PRIVATE = frozenset(
    ("tmpfs", "ramfs", "overlay", "aufs", "squashfs", "fuse.fuse-overlayfs", "fuse.squashfuse")
)
_KINDS = (
    (stat.S_ISREG, "file"),
    (stat.S_ISDIR, "directory"),
    (stat.S_ISFIFO, "fifo"),
    (stat.S_ISSOCK, "socket"),
)


class MountPoint(msgspec.Struct, frozen=True):
    """One line of mountinfo, in part.

    Attributes:
        device: Its device number, the same for all mounts of one file system.
        root: The directory of that file system that is mounted.
        source: What was mounted: a block device, a server's directory, a name.
        options: Those of the file system, separated by commas and escaped.
    """

    point: str
    kind: str
    device: str = ""
    root: str = "/"
    source: str = ""
    options: str = ""

    @property
    def private(self) -> bool:
        """Whether other machines cannot have this file system.

        The root is exempt: a whole system in a container is on an overlay, and may share it with
        others or not.
        """
        return self.kind in _PRIVATE and self.point != "/"


def read_mounts(path: str = "/proc/thread-self/mountinfo") -> list[MountPoint]:
    """Read the mounts of this mount namespace, in the order in which they were made.

    Others name mount points, too, and the kernel does not escape a carriage return.
    """
    with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
        return [parse_mount(line) for line in lines]


def parse_mount(line: str) -> MountPoint:
    """Parse one line of mountinfo, where blanks in paths are octal escapes."""
    before, _, after = line.partition(" - ")
    device, root, point = before.split(" ")[2:5]
    kind, source, *options = after.rstrip("\n").split(" ")[:3]
    return MountPoint(_plain(point), kind, device, _plain(root), _plain(source), *options)


def _plain(text: str) -> str:
    if "\\" not in text:
        return text
    for escape, plain in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escape, plain)
    return text


def mount_of(path: str, mounts: list[MountPoint]) -> MountPoint:
    """Return the mount that a path without symbolic links is on."""
    found = MountPoint("/", "")
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        # of two at the same point the later one hides the earlier
        if inside and len(mount.point) >= len(found.point):
            found = mount
    return found


def on_the_nodes(path: str, bundle: str, rootfs: str, mounts: list[MountPoint]) -> str | None:
    """Return the path where the nodes may see what an engine mounted for one container.

    containerd's shim mounts the root file system at `rootfs` of the bundle. buildah, in its own
    mount namespace, binds it and the volumes below `mnt` of the bundle. docker's drivers with a
    file system per container mount it at the path in config.json. docker and podman mount a volume
    that has options (`--opt o=bind --opt device=DIR`) at its `_data`. The nodes have none of these
    mounts, but perhaps what was bound: None if there is no other path. Paths are without links.
    """
    mount = mount_of(path, mounts)
    is_volume = os.path.basename(mount.point) == "_data"
    made_for_it = mount.point not in (bundle, "/") and any(
        below(mount.point, path) for path in (bundle, rootfs)
    )
    # a server's file system that is mounted as a whole belongs to the site, not to an engine
    of_the_site = mount.root == "/" and not mount.source.startswith("/dev/") and not mount.private
    if not is_volume and (of_the_site or not made_for_it):
        return path
    inside = os.path.normpath(os.path.join(mount.root, os.path.relpath(path, mount.point)))
    for other in sorted(mounts, key=lambda mount: len(mount.root)):
        if other == mount or other.device != mount.device or not below(inside, other.root):
            continue
        found = os.path.normpath(os.path.join(other.point, os.path.relpath(inside, other.root)))
        # a directory that is bound to its own path exists without the mount, too
        if found == path or (mount_of(found, mounts) == other and _same(found, path)):
            return found
    return None


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def survey(
    config: Mapping[str, Any],
    bundle: str,
    rootfs: str,
    target: Target,
    staged: str,
    mounts: list[MountPoint],
    *,
    container: str,
    limit: int,
) -> dict[str, MountSource]:
    """Return the properties of every path that the policy decides about.

    Engines put the container's id into the paths of what they make for it. Directories are
    measured up to `limit` bytes.
    """
    found: dict[str, MountSource] = {}

    def add(path: str, *, copied: bool = False) -> bool:
        source = look(path, mounts)
        if target.elsewhere and source.real:
            source = _look_behind(source, os.path.realpath(bundle), rootfs, mounts)
        alone = only_here(source.there or path, source, target, staged)
        if alone or copied:
            own = container in source.real.split("/")
            size = size_of(path, limit) if source.kind == "directory" else source.size
            source = msgspec.structs.replace(source, size=size, own=own)
        found[path] = source
        return alone

    given = config.get("mounts") or []
    for path in binds(given, bundle):
        add(path)
    for mount in given:
        first, *others = directories_of_overlay(mount) or [""]
        if first:
            alone = [add(path) for path in others]
            add(first, copied=any(alone))
    for device in (config.get("linux") or {}).get("devices") or []:
        found[device["path"]] = look(device["path"], mounts)
    return found


def _look_behind(
    source: MountSource, bundle: str, rootfs: str, mounts: list[MountPoint]
) -> MountSource:
    """Return the properties of the source of a mount for the container, instead of the mount's."""
    there = on_the_nodes(source.real, bundle, rootfs, mounts)
    if there is None:
        return msgspec.structs.replace(source, private=True)
    if there == source.real:
        return source
    return msgspec.structs.replace(look(there, mounts), there=there)


def look(path: str, mounts: list[MountPoint]) -> MountSource:
    """Return the properties of one path."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return MountSource(kind="missing")
    except OSError:
        return MountSource(kind="unreadable", real=path)
    real = os.path.realpath(path)
    mount = mount_of(real, mounts)
    capacity = 0
    if mount.kind == "tmpfs" and mount.point == real:
        space = os.statvfs(path)
        capacity = space.f_blocks * space.f_frsize
    kind: Any = next((name for test, name in _KINDS if test(status.st_mode)), "device")
    return MountSource(
        kind=kind,
        real=real,
        private=mount.private,
        size=status.st_size if kind == "file" else 0,
        capacity=capacity,
        mine=kind == "socket" and status.st_uid == os.geteuid(),
    )
