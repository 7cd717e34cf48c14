"""Looks at the layers of an overlay, as a container engine mounts them, and at their marks.

The kernel tells them in mountinfo. fuse-overlayfs tells nothing: containers-storage has written
down, in `overlay/ID/lower`, what `overlay/ID/merged` is mounted from. The driver vfs of podman and
docker gives each container a copy of its image's directory: that and what differs are the layers.

The kernel's marks of what has been removed are devices and an extended attribute. fuse-overlayfs
has names as well, as OCI images do, for file systems that cannot have the others; no container can
use such names in it.

An image's author may be hostile: no link in a layer is followed. Everything here blocks.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from _blake2 import blake2s
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from scrun.core.errors import StagingError
from scrun.supervisor.staging.digests import parent_of

if TYPE_CHECKING:
    from scrun.supervisor.staging.survey import MountPoint

_FUSES_OWN = "user.fuseoverlayfs.opaque"
REMOVED = ".wh."
"""Begins the name that says that what has the rest of it is removed."""

ALL = ".wh..wh..opq"
"""The name that says that all is."""


class Whiteouts(msgspec.Struct, frozen=True):
    """Those of one difference, by an `opaque` attribute, or perhaps fuse-overlayfs."""

    opaque: str
    by_fuse: bool = False

    def hide_all(self, folder: int | str) -> bool:
        """Tell whether a directory hides all that was there."""
        if is_set(folder, self.opaque):
            return True
        return self.by_fuse and (is_set(folder, _FUSES_OWN) or ALL in os.listdir(folder))

    def parted(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Part the names in a directory: those of files, and those that are removed."""
        if not self.by_fuse:
            return [*names], []
        files = [name for name in names if not name.startswith(REMOVED)]
        removed = {name.removeprefix(REMOVED) for name in names} - {*files}
        return files, sorted(removed - {"", ".", "..", ALL.removeprefix(REMOVED)})


def is_deletion(status: os.stat_result) -> bool:
    """Return whether this marks, in a layer, that something below is not there."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_set(folder: int | str, mark: str) -> bool:
    """Return whether a directory has an attribute that is given to those of layers."""
    try:
        return os.getxattr(folder, mark) == b"y"
    except OSError:
        return False


_BLOCK = 512  # stat(2)
_MEBIBYTE = 1 << 20


def check_room(uppers: Sequence[str], original: str, marks: Whiteouts) -> None:
    """Refuse changes that do not fit, if that is known: half of them are worse than none."""
    needed = _growth(uppers, original, marks)
    space = os.statvfs(original)
    free = space.f_bavail * space.f_frsize
    if needed is not None and space.f_blocks and needed > free:
        raise StagingError(
            f"the container's changes are not in {original}: they need "
            f"{needed // _MEBIBYTE + 1} MiB, and {free // _MEBIBYTE} are free there"
        )


def _growth(uppers: Sequence[str], original: str, marks: Whiteouts) -> int | None:
    """Return the bytes by which the original will grow; None if something is removed."""
    total = 0
    seen: set[tuple[int, int]] = set()
    todo = [(upper, original) for upper in uppers]
    while todo:
        folder, there = todo.pop()
        if marks.hide_all(folder):
            return None
        with os.scandir(folder) as found:
            for entry in found:
                status, path = entry.stat(follow_symlinks=False), os.path.join(there, entry.name)
                if is_deletion(status) or marks.parted([entry.name])[1]:
                    return None
                if stat.S_ISDIR(status.st_mode):
                    todo.append((entry.path, path))
                elif (key := (status.st_dev, status.st_ino)) not in seen:
                    total += (status.st_blocks - _blocks(path)) * _BLOCK
                    if status.st_nlink > 1:
                        seen.add(key)
    return total


def _blocks(path: str) -> int:
    try:
        return os.lstat(path).st_blocks
    except OSError:
        return 0


LONGEST = 4000
"""The most bytes of a mount's options: the kernel takes a page, with what the runtime adds."""

# others may change what the layers mean
_HARMLESS = re.compile(
    r"rw|ro|userxattr|volatile|(uuid|xino|index|nfs_export|verity|fsync)=[a-z]+"
    r"|redirect_dir=(off|nofollow)|metacopy=off|default_permissions|noatime|relatime",
    re.ASCII,
)
# these leave files without content, or elsewhere, in the layer that is written to
_MARKING = re.compile(r"redirect_dir=(on|follow)|metacopy=on", re.ASCII)
_OCTAL = re.compile(r"\\([0-3][0-7][0-7])", re.ASCII)
_PLAIN_PATH = re.compile(r"[A-Za-z0-9._/@%+=~^-]+", re.ASCII)


class Unusable(ValueError):
    """The layers cannot be mounted; says why, as the end of a sentence about them."""


NO_ROOM = 3
"""The exit status of the programs that make images and unpack them, when there is none."""


class Overlay(msgspec.Struct, frozen=True):
    """The layers of an overlay, as its options name them.

    Attributes:
        layers: The directories, the one that is written to first; perhaps relative.
        users: Whether its marks are in the extended attributes that users may set.
        why_not: Why a node cannot mount them as they are, though it could mount copies; as the end
            of a sentence about them.
        by_fuse: Whether they may have the marks of fuse-overlayfs.
        plain: Whether the first is all that the container has, and the other its whole image.
    """

    layers: tuple[str, ...]
    users: bool
    why_not: str = ""
    by_fuse: bool = False
    plain: bool = False


def parse(options: str) -> Overlay:
    r"""Parse the options of a mounted overlay; Unusable if it is not understood here.

    mountinfo has commas and backslashes of a value in octal, `\054`; a colon in a lower directory
    has had a backslash before it all the time.
    """
    lower: list[str] = []
    upper = ""
    users = False
    why_not = ""
    for word in options.split(","):
        name, _, escaped = word.partition("=")
        value = _OCTAL.sub(lambda found: chr(int(found[1], 8)), escaped)
        if name == "lowerdir":
            lower = _split(value)
        elif name == "lowerdir+":
            lower.append(value)
        elif name == "upperdir":
            upper = value
        elif name == "workdir":
            continue
        elif _MARKING.fullmatch(word):
            why_not = f"are mounted with {word}"
        elif not _HARMLESS.fullmatch(word):
            raise Unusable(f"are mounted with {word[:64]}")
        users |= word == "userxattr"
    if not lower or not upper or "\\" in upper:
        raise Unusable("are not known: its options name no upper and lower directory")
    return Overlay((upper, *lower), users, why_not)


def _split(value: str) -> list[str]:
    """Split lower directories at colons; a backslash protects the next character."""
    found = [""]
    characters = iter(value)
    for one in characters:
        if one == "\\":
            found[-1] += next(characters, "")
        elif one == ":":
            found.append("")
        else:
            found[-1] += one
    if not all(found):  # `::` begins layers with data only
        raise Unusable("have layers with data only")
    return found


def is_plain(path: str) -> bool:
    """Return whether a path means itself in options, in config.json and in a shell."""
    return bool(_PLAIN_PATH.fullmatch(path))


def options_of(lower: Sequence[str], written: tuple[str, str] | None, *, users: bool) -> list[str]:
    """Return the options for an overlay of plain paths; Unusable if they are too long.

    Args:
        lower: The directories below, the upmost first.
        written: What is written to, and the kernel's own on the same file system; None: nothing
            can be written.
        users: Whether the mounting process has rights in a user namespace only.
    """
    words = [f"lowerdir={':'.join(lower)}"]
    if written is not None:
        words += [f"upperdir={written[0]}", f"workdir={written[1]}"]
    words += marks(users=users)
    if len(",".join(words)) > LONGEST:
        raise Unusable(f"are too many: {len(lower)}, with long paths")
    return words


def opaque(*, users: bool) -> str:
    """Return the extended attribute of a directory that hides those of the layers below."""
    return ("user" if users else "trusted") + ".overlay.opaque"


_KINDS = ("trusted.overlay.", "user.overlay.", "user.fuseoverlayfs.")
_ELSEWHERE = ("metacopy", "redirect", "whiteout")
_STATUS = ("user.containers.override_stat", "user.fuseoverlayfs.override_stat")


def attributes_of(reading: int, opaque: str) -> dict[str, bytes]:
    """Return the extended attributes of a layer's file for a copy, as far as they may be read.

    `opaque` marks a directory there that hides those of the layers below. Unusable if only the
    engine's mount understands them.
    """
    found: dict[str, bytes] = {}
    try:
        names = os.listxattr(reading)
    except OSError:
        return found
    for name in names:
        mark = next((name[len(kind) :] for kind in _KINDS if name.startswith(kind)), None)
        if name in _STATUS or mark in _ELSEWHERE:
            raise Unusable(f"have what only the engine's mount can read: {name}")
        if mark is None:
            with contextlib.suppress(OSError):
                found[name] = os.getxattr(reading, name)
        elif mark == "opaque" and os.getxattr(reading, name) == b"y":
            found[opaque] = b"y"
    return found


def deletion_by_name(name: bytes) -> bytes | None:
    """Return what a mark of fuse-overlayfs deletes; b"": all below; None: it is not a mark."""
    if name == os.fsencode(ALL):
        return b""
    removed = os.fsencode(REMOVED)
    return name[len(removed) :] if name.startswith(removed) else None


def marks(*, users: bool) -> list[str]:
    """Return the options that say how the kernel marks changes."""
    # only files, directories and deletions come back, no marks of renames
    return ["userxattr"] if users else ["redirect_dir=nofollow", "metacopy=off", "index=off"]


def mount_of_layers(name: str, options: Sequence[str]) -> dict[str, Any]:
    """Return the entry of `mounts` for a directory in the root directory."""
    return {
        "destination": f"/{name}",
        "type": "overlay",
        "source": "overlay",
        "options": list(options),
    }


_MOST = 400  # the kernel's limit is 500
_FUSE = "fuse.fuse-overlayfs"
_FUSE_OPAQUE = ("user.fuseoverlayfs.opaque", "user.overlay.opaque", "trusted.overlay.opaque")
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

    Unusable if it is neither an overlay nor a directory of podman's vfs; or a layer is missing.
    """
    if mount.point != rootfs or mount.root != "/":
        return _of_vfs(rootfs)
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

    Unusable if something there cannot be mounted.
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
    marks = (
        _FUSE_OPAQUE if overlay.by_fuse else (opaque(users=overlay.users),) * (not overlay.plain)
    )
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


def _of_vfs(rootfs: str) -> Overlay:
    """Return what an engine's vfs has made a container's directory from, as layers.

    Unusable if it is not such a directory, or no record tells.
    """
    image = parent_of(rootfs)
    if image is None or not os.path.isdir(image):
        raise Unusable("are not known: it is not a mount of its own, nor of a driver vfs")
    why_not = "are plain directories, which the node does not see"
    return Overlay((rootfs, image), users=False, why_not=why_not, plain=True)


_MANY = 16


def folder_of(links: str, directory: str, count: int) -> str:
    """Return the path by which mounts reach the links to layers.

    The options of a mount have to fit into a page, and the path of a staged bundle contains a
    container's id. So where there are many, a link beside the staged bundle leads to them.
    """
    if count <= _MANY:
        return links
    path = _name(directory)
    try:
        os.symlink(links, path)
    except OSError:  # the name is taken, or only the bundle itself can be written
        return links
    return path


def remove_link(directory: str) -> None:
    """Remove the link of a staged bundle, if it has one."""
    path = _name(directory)
    with contextlib.suppress(OSError):
        if os.readlink(path).startswith(os.path.join(directory, "")):
            os.unlink(path)


def _name(directory: str) -> str:
    digest = blake2s(os.fsencode(directory), digest_size=5).hexdigest()
    return os.path.join(os.path.dirname(directory), f".scrun-{digest}")
