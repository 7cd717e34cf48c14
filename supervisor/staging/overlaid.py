"""Lays out a staged bundle whose root file system the node mounts from layers.

Those are the engine's own, or copies of them in the store of images.

A shim mounts one overlay. Otherwise there is one for each directory in the root directory, as
mounts of config.json, which works with each runtime and however the container is started.
Everything here blocks: call it in a worker thread.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from scrun.core.errors import described
from scrun.core.trees import remove_tree
from scrun.oci.userns import has_several
from scrun.supervisor.contracts.node import Mounting
from scrun.supervisor.contracts.staged import OVERLAY, OfTask
from scrun.supervisor.staging.layers import overlay_of, top_level
from scrun.supervisor.staging.layout import ROOTFS, Layout, is_read_only
from scrun.supervisor.staging.node_trial import BundleRefused, Others, Unseen
from scrun.supervisor.staging.on_node import (
    archive_of,
    making_in,
    place_in,
    remote,
    removing,
    sending,
)
from scrun.supervisor.staging.overlay_options import Unusable, is_plain, mount_of_layers
from scrun.supervisor.staging.packing import NotMounted, Packing
from scrun.supervisor.staging.short_link import remove_link
from scrun.supervisor.staging.stored import StoredLayers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scrun.supervisor.contracts.staged import Image
    from scrun.supervisor.staging.image_access import ContainerImages
    from scrun.supervisor.staging.layout import Rootfs
    from scrun.supervisor.staging.overlay_options import Overlay
    from scrun.supervisor.staging.own_file import OwnFile
    from scrun.supervisor.staging.packing import Mounter
    from scrun.supervisor.staging.stored import Copies


NO_ROOT = "no root"
"""Its shim can mount no root file system."""

_OF_THE_NODE = ["nosuid", "nodev", "noexec", "mode=755"]

BY_FUSE = "by fuse"
"""Its kernel refuses to, and fuse-overlayfs does it."""


class Overlays(msgspec.Struct, frozen=True):
    """How a container's node is asked about overlays.

    Attributes:
        ask: Runs a script there, and returns what it printed: for each task, or on each node.
        cache: The file for what is known of layers.
        images: The store for layers that the node does not see.
        keeps: Whether it may have a directory for changes.
        wanted: Whether nodes shall mount overlays at all.
        tasks: How many tasks the container has, with mounts of their own; 0: all have the same.
        mount_points: Where, or below which, the node mounts what config.json does not have.
        mounter: How the node mounts root file systems and squashfs images; None if it does not.
        mounted: What is known of the node: of what kinds it has mounted some before
            (`Trial.kind`), NO_ROOT and BY_FUSE.
    """

    ask: Callable[[str], list[str]]
    cache: str
    images: ContainerImages | None = None
    keeps: bool = True
    wanted: bool = True
    tasks: int = 1
    mount_points: Sequence[str] = ()
    mounter: Mounter | None = None
    mounted: set[Any] = msgspec.field(default_factory=set)


class LaidOut(msgspec.Struct, frozen=True):
    """How a node mounts a root file system.

    Attributes:
        stored: Whether it mounts copies of the layers.
        places: The directories with what the tasks write, if that is not `overlay` itself.
        on_node: Whether those are on the nodes.
        packed: Whether there are squashfs images among the copies.
        way: How the node mounts those; or why they are directories, though they were to be images.
        by_fuse: Whether fuse-overlayfs mounts the overlay, and not the kernel.
    """

    stored: bool
    places: tuple[str, ...] = ()
    on_node: bool = False
    packed: bool = False
    way: str = ""
    by_fuse: bool = False

    @property
    def image(self) -> Image:
        if self.packed:
            return "squashfs"
        return "store" if self.stored else "layers"


def lay_out(
    rootfs: Rootfs, directory: str, overlays: Overlays, own: OwnFile | None = None
) -> LaidOut:
    """Lay out a staged bundle, make sure that the node can mount it, and add to its mounts.

    Args:
        rootfs: The root file system. Its config.json gets the mounts, before all others.
        own: The user's file that its only lower layer is.

    Returns:
        How the node mounts it.

    Raises:
        Unusable: It cannot be done; something may have been written.
    """
    if not is_plain(directory):
        raise Unusable(f"cannot be mounted in {directory!a}")
    if not rootfs.rootless and _has_users(rootfs.config):
        raise Unusable("cannot be mounted by a container with users of its own")
    if not overlays.tasks and not is_read_only(rootfs.config):
        raise Unusable(
            "cannot be mounted by several tasks of srun --container, which have the "
            "same mounts: two overlays cannot write to one directory"
        )
    config = rootfs.config
    mounts = [*(config.get("mounts") or [])]
    read_only = is_read_only(config)
    if read_only:  # the runtime can make no directory in it, below these
        mounts[:0] = [
            {"destination": place, "type": "tmpfs", "source": "tmpfs", "options": _OF_THE_NODE}
            for place in overlays.mount_points
        ]
    tasks = max(1, overlays.tasks)
    rootfs = msgspec.structs.replace(rootfs, tasks=tasks, config={**config, "mounts": mounts})
    overlay = overlay_of(rootfs.mount, rootfs.path)
    if overlay.users != rootfs.rootless and not overlay.why_not:
        why_not = "have marks of deletions that the node does not read"
        overlay = msgspec.structs.replace(overlay, why_not=why_not)
    try:
        layout, laid_out = _laid_out(rootfs, directory, overlay, overlays, own)
    except OSError as error:
        raise Unusable(f"cannot be laid out: {described(error)}") from error
    of_layers = [
        mount_of_layers(name, [*["ro"] * read_only, *words])
        for name, words in layout.options.items()
        if name
    ]
    config["mounts"] = of_layers + mounts
    return laid_out


def written_at(
    laid: LaidOut | None, directory: str, *, rootless: bool, final: bool
) -> tuple[str, tuple[OfTask, ...]]:
    """Return where on its node a container writes, or what is the own of each of its tasks.

    Args:
        laid: How its node mounts it; None: it is copied.
        rootless: Whether it has rights in a user namespace only.
        final: Whether nothing comes back.
    """
    if laid is None or not laid.places:
        return "", ()
    if len(laid.places) == 1:
        return laid.places[0], ()
    tasks = []
    for number, place in enumerate(laid.places):
        last = ""
        if laid.on_node and final:
            last = removing([place], rootless=rootless)
        elif laid.on_node:
            last = sending(place, archive_of(directory, number), rootless=rootless)
        tasks.append(OfTask(place, last))
    return "", tuple(tasks)


def _laid_out(
    rootfs: Rootfs, directory: str, overlay: Overlay, overlays: Overlays, own: OwnFile | None
) -> tuple[Layout, LaidOut]:
    """Lay out a staged bundle that the node can mount."""
    owners = not rootfs.rootless or has_several(rootfs.config)
    stored: Copies | None = own
    packing = own.packing if own else Packing(overlays.mounter, "files")
    if stored is None and overlays.images is not None and is_plain(overlays.images.path):
        packing = Packing(overlays.mounter, overlays.images.format)
        stored = StoredLayers(
            overlay, overlays.images, packing, rootless=rootfs.rootless, owners=owners
        )
    maps = None
    if rootfs.rootless and owners:
        maps = {name: rootfs.config["linux"][name] for name in ("uidMappings", "gidMappings")}
    unseen: frozenset[int] = frozenset()
    if overlay.why_not:
        unseen = frozenset(range(len(overlay.layers)))
    beside = _whose_users(rootfs.config)
    ways = _ways(rootfs, directory, overlays, owners=owners, beside=beside)
    while True:
        one, by_fuse, on_node = ways[0]
        if unseen:
            if stored is None:
                raise Unusable(overlay.why_not)
            stored.make(unseen)
        top = None if one else top_level(rootfs.path, overlay)
        layout = Layout(rootfs, directory, overlay, top, stored)
        places: list[str] = []
        try:
            layout.write(overlays.cache, unseen, on_node=on_node, by_fuse=by_fuse)
            mounting = Mounting(maps=maps, by_fuse=by_fuse, beside=beside)
            _have_mounted(layout, overlays, packing, mounting, places, one=one, on_node=on_node)
        except NotMounted as error:
            _give_up(overlays, places, rootfs)
            if layout.images and stored is not None:
                unseen |= stored.unpack(str(error))
            else:
                ways = [way for way in ways if not way.one]
                if not beside:  # else the container that it was to be beside may be gone
                    overlays.mounted.add(NO_ROOT)
        except Unseen as error:
            _give_up(overlays, places, rootfs)
            if stored is None or (unseen and (error.store or not stored.is_seen)):
                raise
            if not error.store:
                stored.send(str(error))
            unseen |= error.layers
        except BundleRefused:
            _give_up(overlays, places, rootfs)
            if len(ways) == 1:
                raise
            ways = ways[1:]
        else:
            if by_fuse:
                overlays.mounted.add(BY_FUSE)
            made = tuple(places) if on_node else layout.places
            packed = bool(layout.images)
            laid_out = LaidOut(layout.from_store, made, on_node, packed, by_fuse=by_fuse)
            return layout, msgspec.structs.replace(laid_out, way=_way(stored, layout))
        packing.unmount()
        remove_link(directory)
        for name in (OVERLAY, ROOTFS):
            if os.path.lexists(path := os.path.join(directory, name)):
                remove_tree(path)


class _Way(NamedTuple):
    """How an overlay may be mounted.

    Attributes:
        one: Whether the shim mounts one; else the runtime one for each directory.
        by_fuse: Whether fuse-overlayfs does it, and not the kernel.
        on_node: Whether what is written is on the node.
    """

    one: bool
    by_fuse: bool
    on_node: bool


def _ways(
    rootfs: Rootfs, directory: str, overlays: Overlays, *, owners: bool, beside: str
) -> list[_Way]:
    """Return those to try in turn; an overlay may be refused for where it is to write, too."""
    places = [False]
    if overlays.keeps and not (rootfs.rootless and owners) and not is_read_only(rootfs.config):
        places = [True] if remote(os.path.realpath(directory)) else [False, True]
    found = []
    # the only user of another container's namespace has a different uid there than outside
    apart = owners or not beside
    if overlays.mounter is not None and apart and NO_ROOT not in overlays.mounted:
        if BY_FUSE not in overlays.mounted:
            found += [_Way(True, False, on_node) for on_node in places]
        if rootfs.rootless:
            found.append(_Way(True, True, places[0]))
    return found + [_Way(False, False, on_node) for on_node in places]


def _have_mounted(
    layout: Layout,
    overlays: Overlays,
    packing: Packing,
    mounting: Mounting,
    places: list[str],
    *,
    one: bool,
    on_node: bool,
) -> None:
    """Let the node mount the root file system, or try the mounts of the runtime.

    `places` receives the nodes' directories for what is written, if it is `on_node`.
    """
    if not one:
        if layout.images:
            packing.mount(layout.images, mounting)
        trial = layout.trial(on_node=on_node)
        answers = overlays.ask(trial.script(overlays.mounted))
        places += map(place_in, answers)
        trial.judge(answers)
        overlays.mounted.add(trial.kind)
    elif on_node:
        places += map(place_in, overlays.ask(making_in(layout.directory)))
    if on_node:
        layout.put(places)
    if one:
        looks = layout.looks
        mounting = msgspec.structs.replace(mounting, roots=layout.roots, looks=looks.wanted)
        try:
            packing.mount(layout.images, mounting)
        except Others as error:
            raise looks.unseen(error.numbers) from None


def _way(stored: Copies | None, layout: Layout) -> str:
    if stored is None or not layout.from_store:
        return ""
    if not layout.images:
        return stored.packing.why_not
    return stored.packing.way + ", after they were sent to the node" * stored.packing.sent


def _give_up(overlays: Overlays, places: Sequence[str], rootfs: Rootfs) -> None:
    """Remove what the nodes have made."""
    if made := [place for place in places if place]:
        with contextlib.suppress(Unusable):
            overlays.ask(removing(made, rootless=rootfs.rootless))


def _whose_users(config: Mapping[str, Any]) -> str:
    """Return where config.json has the namespaces of whose users the container is; or ""."""
    namespaces = (config.get("linux") or {}).get("namespaces") or []
    paths = [one.get("path") or "" for one in namespaces if one["type"] == "user"]
    return os.path.dirname(paths[0]) if paths else ""


def _has_users(config: Mapping[str, Any]) -> bool:
    namespaces = (config.get("linux") or {}).get("namespaces") or []
    return any(namespace["type"] == "user" for namespace in namespaces)
