"""Lays out a staged bundle whose root file system the node mounts from layers.

Those are the engine's own, or copies of them in the store of images.

::

    rootfs/NAME             where the node mounts the directory NAME of the root directory;
                            the files and links of that are here as copies
    overlay/l/N             links to the layers: short names in the options of the mounts
    overlay/mine/N          a copy of a layer that no image has, such as the container's own
    overlay/own/            copies of what the container's one user could not use
    overlay/upper/NAME      what the container writes
    overlay/work/NAME       the kernel's own
    overlay/place           has the name of the node's directory for these two, if they are there
    overlay/trial/          for an attempt to mount, on the node

An overlay for each directory, as mounts of config.json, works with each runtime and however the
container is started. crun before 1.22 mounts nothing on the root directory itself. Everything here
blocks: call it in a worker thread.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from typing import TYPE_CHECKING, Any

import msgspec

from scrun.core.errors import described
from scrun.core.trees import everything_below, remove_tree
from scrun.oci.userns import has_several
from scrun.supervisor.core.files import write
from scrun.supervisor.staging.copies import OPEN, Room, copy_all, copy_entry
from scrun.supervisor.staging.foreign import foreign_in
from scrun.supervisor.staging.layers import overlay_of, top_level
from scrun.supervisor.staging.node_trial import TRIAL, Trial, Unseen
from scrun.supervisor.staging.on_node import place_in, remote, removing
from scrun.supervisor.staging.overlay_options import (
    Unusable,
    is_plain,
    mount_of_layers,
    opaque,
    options_of,
)
from scrun.supervisor.staging.read_only import make_mount_points
from scrun.supervisor.staging.short_link import folder_of
from scrun.supervisor.staging.stored import StoredLayers
from scrun.supervisor.staging.strangers import copy_foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from scrun.supervisor.staging.layers import TopLevel
    from scrun.supervisor.staging.overlay_options import Overlay
    from scrun.supervisor.staging.stored import Images
    from scrun.supervisor.staging.survey import MountPoint

ROOTFS = "rootfs"
OVERLAY = "overlay"
UPPER = "upper"
PLACE = "place"
_SMALL = (1 << 20, 200)  # bytes and entries


class Overlays(msgspec.Struct, frozen=True):
    """How a container's node is asked about overlays.

    Attributes:
        ask: Runs a script there, and returns what it printed.
        cache: The file for what is known of layers.
        images: The store for layers that the node does not see.
        keeps: Whether it may have a directory for what is written.
    """

    ask: Callable[[str], str]
    cache: str
    images: Images | None = None
    keeps: bool = True


class Rootfs(msgspec.Struct, frozen=True):
    """A root file system that an engine has mounted.

    Attributes:
        path: Its path, without links.
        mount: What is mounted there.
        config: The config.json that will run.
        rootless: Whether the container has rights in a user namespace only.
    """

    path: str
    mount: MountPoint
    config: dict[str, Any]
    rootless: bool


class LaidOut(msgspec.Struct, frozen=True):
    """How a node mounts a root file system.

    Attributes:
        stored: Whether it mounts copies of the layers.
        place: The directory on the node with what the container writes; "": the staged bundle.
    """

    stored: bool
    place: str = ""


def lay_out(rootfs: Rootfs, directory: str, overlays: Overlays) -> LaidOut:
    """Lay out a staged bundle, make sure that the node can mount it, and add to its mounts.

    Args:
        rootfs: The root file system. Its config.json gets the mounts, before all others.
        directory: The staged bundle.
        overlays: How to ask the node.

    Returns:
        How the node mounts it.

    Raises:
        Unusable: It cannot be done; something may have been written.
    """
    if not is_plain(directory):
        raise Unusable(f"cannot be mounted in {directory!a}")
    if not rootfs.rootless and _has_users(rootfs.config):
        raise Unusable("cannot be mounted by a container with users of its own")
    overlay = overlay_of(rootfs.mount, rootfs.path)
    if overlay.users != rootfs.rootless and not overlay.why_not:
        why_not = "have marks of deletions that the node does not read"
        overlay = msgspec.structs.replace(overlay, why_not=why_not)
    try:
        layout, place = _laid_out(rootfs, directory, overlay, overlays)
    except OSError as error:
        raise Unusable(f"cannot be laid out: {described(error)}") from error
    read_only = ["ro"] if _is_read_only(rootfs.config) else []
    mounts = [
        mount_of_layers(name, [*read_only, *words]) for name, words in layout.options.items()
    ]
    rootfs.config["mounts"] = mounts + (rootfs.config.get("mounts") or [])
    return LaidOut(layout.from_store, place)


def _laid_out(
    rootfs: Rootfs, directory: str, overlay: Overlay, overlays: Overlays
) -> tuple[_Layout, str]:
    """Lay out a staged bundle that the node can mount; return the place for what is written."""
    top = top_level(rootfs.path, overlay)
    owners = not rootfs.rootless or has_several(rootfs.config)
    stored = None
    if overlays.images is not None and is_plain(overlays.images.path):
        stored = StoredLayers(overlay, overlays.images, rootless=rootfs.rootless, owners=owners)
    unseen: frozenset[int] = frozenset()
    if overlay.why_not:
        unseen = frozenset(range(len(overlay.layers)))
    may_be_on_node = overlays.keeps and (not rootfs.rootless or not owners)
    on_node = may_be_on_node and remote(os.path.realpath(directory))
    while True:
        if unseen:
            if stored is None:
                raise Unusable(overlay.why_not)
            stored.make(unseen)
        layout = _Layout(rootfs, directory, overlay, top, stored)
        place = ""
        try:
            layout.write(overlays.cache, unseen, marks=not on_node)
            trial = layout.trial(on_node=on_node)
            answer = overlays.ask(trial.script)
            place = place_in(answer)
            trial.judge(answer)
            if on_node:
                layout.put(place)
        except Unseen as error:
            _give_up(overlays, place, rootfs)
            if unseen or stored is None:
                raise
            if not error.store:
                raise Unusable(f"{error}; nor is the store of images, {stored.path}") from error
            unseen = error.layers
        except Unusable:
            _give_up(overlays, place, rootfs)
            if on_node or not may_be_on_node:
                raise
            on_node = True  # perhaps the staged bundle cannot have what is written
        else:
            return layout, place
        for name in (OVERLAY, ROOTFS):
            if os.path.lexists(path := os.path.join(directory, name)):
                remove_tree(path)


def _give_up(overlays: Overlays, place: str, rootfs: Rootfs) -> None:
    """Remove what the node has made."""
    if place:
        with contextlib.suppress(Unusable):
            overlays.ask(removing(place, rootless=rootfs.rootless))


def _is_read_only(config: Mapping[str, Any]) -> bool:
    return bool((config.get("root") or {}).get("readonly"))


def _has_users(config: Mapping[str, Any]) -> bool:
    namespaces = (config.get("linux") or {}).get("namespaces") or []
    return any(namespace["type"] == "user" for namespace in namespaces)


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[int]:
    fd = os.open(folder, OPEN)
    try:
        yield fd
    finally:
        os.close(fd)


class _Layout:
    """The files of one staged bundle.

    Attributes:
        options: The options of each mount, by the name in the root directory.
        from_store: Whether there are copies of the store among the layers.
    """

    def __init__(
        self,
        rootfs: Rootfs,
        directory: str,
        overlay: Overlay,
        top: TopLevel,
        stored: StoredLayers | None,
    ) -> None:
        self.options: dict[str, list[str]] = {}
        self._rootfs = rootfs
        self._bundle = directory
        self._staged = os.path.join(directory, ROOTFS)
        self._directory = os.path.join(directory, OVERLAY)
        self._overlay = overlay
        self._stored = stored
        there = stored.there if stored else {}
        self.from_store = bool(there)
        self._layers = [there.get(number, layer) for number, layer in enumerate(overlay.layers)]
        self._top = top
        self._owners = not rootfs.rootless or has_several(rootfs.config)
        self._hidden = {
            posixpath.normpath(mount["destination"].lstrip("/"))
            for mount in rootfs.config.get("mounts") or []
        }

    def _path(self, *names: str) -> str:
        return os.path.join(self._directory, *names)

    def write(self, cache: str, unseen: frozenset[int], *, marks: bool) -> None:
        """Write everything, and decide on the options.

        Args:
            cache: The file for what is known of layers.
            unseen: The numbers of layers that the node cannot use.
            marks: Whether the kernel has to mark here what the container deletes.
        """
        os.mkdir(self._directory, 0o700)
        for name in ("l", "mine", "own", UPPER, "work", *TRIAL):
            os.mkdir(self._path(name), 0o700)
        if marks:
            self._try_attributes()
        if 0 not in unseen:
            self._copy_own_layer()
        self._copy_layers(unseen)
        for number, layer in enumerate(self._layers):
            os.symlink(layer, self._path("l", str(number)))
        short = folder_of(self._path("l"), self._bundle, len(self._layers))
        whole = self._copy_strangers(cache)
        os.mkdir(self._staged, 0o700)
        for name, numbers in self._top.directories.items():
            below = [] if name in whole else [f"{short}/{number}" for number in numbers]
            self._directory_of_root(name, [self._path("own"), *below])
        self._others()
        self._dress(self._staged, self._rootfs.path)
        if _is_read_only(self._rootfs.config):
            mounts = self._rootfs.config.get("mounts") or []
            upper = self._path(UPPER)
            make_mount_points(mounts, self._rootfs.path, upper, owners=self._owners)

    def _try_attributes(self) -> None:
        """Raise Unusable if deletions of whole directories could not be marked."""
        name = "user.scrun" if self._rootfs.rootless else "trusted.scrun"
        try:
            os.setxattr(self._path("own"), name, b"y")
        except OSError as error:
            where = f"extended attributes in {self._directory}"
            raise Unusable(f"need {where}: {error.strerror}") from error

    def _copy_own_layer(self) -> None:
        """Copy the container's own layer if it is small: it may be where the nodes do not look.

        Images can be in a store that all machines share, and containers on a local disk.
        """
        mark = opaque(users=self._overlay.users)
        copied = self._path("mine", "0")
        os.mkdir(copied, 0o700)
        with contextlib.suppress(Unusable, PermissionError):  # else it is mounted as it is
            with _opened(self._layers[0]) as source, _opened(copied) as target:
                copy_all(source, target, Room(*_SMALL), owners=self._owners, opaque=mark)
            self._layers[0] = copied

    def _copy_layers(self, unseen: frozenset[int]) -> None:
        """Copy what the node cannot use and no image has: its own layer, and small ones."""
        there = self._stored.there if self._stored else {}
        for number in sorted(unseen.difference(there)):
            layer = self._overlay.layers[number]
            if self._stored is None or (number and not _is_small(layer)):
                raise Unusable(f"are only on this machine, and no record has a digest of {layer}")
            copied = self._path("mine", str(number))
            os.mkdir(copied, 0o700)
            self._stored.copy(number, copied)
            self._layers[number] = copied

    def _copy_strangers(self, cache: str) -> frozenset[str]:
        """Copy what the one user cannot use; return what was copied as a whole."""
        if self._owners:
            return frozenset()
        ours = os.path.join(self._directory, "")
        there = self._stored.there.values() if self._stored else ()  # with one owner, too
        layers = [one for one in self._layers if one not in there and not one.startswith(ours)]
        changes = self._overlay.layers[0] in layers
        return copy_foreign(
            foreign_in(layers, cache, changes=changes), self._rootfs.path, self._path("own")
        )

    def _directory_of_root(self, name: str, layers: list[str]) -> None:
        mount_point, upper = os.path.join(self._staged, name), self._path(UPPER, name)
        for path in (mount_point, upper, self._path("work", name)):
            os.mkdir(path, 0o700)
        for path in (mount_point, upper):  # the upper's are those of the mounted directory
            self._dress(path, os.path.join(self._rootfs.path, name))
        paths = [os.path.join(layer, name) for layer in layers]
        if self._top.directories[name] and name not in self._hidden:
            self.options[name] = options_of(
                [path for path in paths if os.path.isdir(path)],
                upper,
                self._path("work", name),
                users=self._rootfs.rootless,
            )

    def _dress(self, path: str, like: str) -> None:
        status = os.lstat(like)
        if self._owners:
            os.chown(path, status.st_uid, status.st_gid)
        os.chmod(path, stat.S_IMODE(status.st_mode))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _others(self) -> None:
        """Copy the files and links of the root directory."""
        room = Room()
        with _opened(self._rootfs.path) as source, _opened(self._staged) as target:
            for name in map(os.fsencode, self._top.others):
                room.take(copy_entry(source, target, name, room=room.left, owners=self._owners))

    def put(self, place: str) -> None:
        """Have what is written in a directory of the node."""
        if not place:
            raise Unusable("cannot be mounted on the node: it made no directory")
        write(self._path(PLACE), place.encode())
        here = os.path.join(self._directory, "")
        for words in self.options.values():
            for number, word in enumerate(words):
                name, _, path = word.partition("=")
                if name in ("upperdir", "workdir"):
                    words[number] = f"{name}={place}/{path.removeprefix(here)}"

    def trial(self, *, on_node: bool) -> Trial:
        """Return how the node tries the mount with the most layers."""
        lower = max(self.options.values(), key=lambda words: len(words[0]), default=[""])[0]
        rootless = self._rootfs.rootless
        store = self._stored.folder if self._stored else None
        return Trial(
            self._directory, lower, self._layers, rootless=rootless, store=store, on_node=on_node
        )


def _is_small(layer: str) -> bool:
    size, entries = _SMALL
    for status in everything_below(layer):
        size -= status.st_size if stat.S_ISREG(status.st_mode) else 0
        entries -= 1
        if size < 0 or entries < 0:
            return False
    return True
