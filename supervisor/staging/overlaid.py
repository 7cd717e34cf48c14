"""Tries the ways of a root file system that its node mounts from layers.

Those are the engine's own, or squashfs images of them in the store.

A shim mounts one overlay. Otherwise there is one for each directory in the root directory, as
mounts of config.json, which works with each runtime and however the container is started.
Everything here blocks: call it in a worker thread.
"""

from __future__ import annotations

import contextlib
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from scrun.core.errors import described
from scrun.supervisor.contracts.staged import OVERLAY, OfTask, Staged
from scrun.supervisor.contracts.target import OthersThere
from scrun.supervisor.staging.layers import (
    Unusable,
    is_plain,
    mount_of_layers,
    remove_link,
    top_level,
)
from scrun.supervisor.staging.layout import ROOTFS, Layout
from scrun.supervisor.staging.on_node import (
    archive_of,
    making_in,
    place_in,
    removing,
    sending,
)
from scrun.supervisor.staging.stage_out import remove_all
from scrun.supervisor.staging.stored import OwnFile, Packing, StoredLayers
from scrun.supervisor.staging.ways import NotMounted, Unseen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrun.supervisor.contracts.staged import Image
    from scrun.supervisor.staging.image_store import ContainerImages
    from scrun.supervisor.staging.stored import Copies, Mounter
    from scrun.supervisor.staging.ways import RootFilesystem, Source, Way


NO_ROOT = "no root"
"""Its shim can mount no root file system."""

_OF_THE_NODE = ["nosuid", "nodev", "noexec", "mode=755"]

_LAYERS = {
    "layers": "the layers",
    "squashfs": "squashfs images of the layers",
}

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

    @property
    def has_store(self) -> bool:
        return self.images is not None and is_plain(self.images.path)

    @property
    def has_shim(self) -> bool:
        """Whether a shim mounts root file systems."""
        return self.mounter is not None and NO_ROOT not in self.mounted

    @property
    def needs_fuse(self) -> bool:
        """Whether its kernel is known to refuse them."""
        return BY_FUSE in self.mounted


class Mounts:
    """Tries one way to mount a root file system after the other; what one learns, the next knows.

    Each way is written and tried, and undone if that has failed.
    """

    def __init__(
        self, root: RootFilesystem, directory: str, overlays: Overlays, *, final: bool
    ) -> None:
        """Prepare; the root file system's config.json is the one that will run.

        `final`: nothing comes back.
        """
        mounts = [*(root.config.get("mounts") or [])]
        if root.read_only:  # the runtime can make no directory in it, below these
            mounts[:0] = [
                {"destination": place, "type": "tmpfs", "source": "tmpfs", "options": _OF_THE_NODE}
                for place in overlays.mount_points
            ]
        self._config = root.config
        self._root = msgspec.structs.replace(root, config={**root.config, "mounts": mounts})
        self._directory = directory
        self._overlays = overlays
        self._final = final
        self._images = overlays.images if overlays.has_store else None
        self._packing = Packing(overlays.mounter, mine=bool(root.file))
        layers = len(root.overlay.layers) if root.overlay.why_not else 0
        self._unseen = frozenset(range(layers))
        self._source: Source = ""
        self._why = ""
        self._places: list[str] = []  # on the nodes, for what is written

    @cached_property
    def _stored(self) -> Copies | None:
        root, images = self._root, self._images
        if images is None:
            return None
        if root.file:
            return OwnFile(root.file, os.path.basename(root.image), images, self._packing)
        return StoredLayers(
            root.overlay, images, self._packing, rootless=root.rootless, owners=root.owners
        )

    def write(self, way: Way) -> None:
        root = self._root
        try:
            if (stored := self._stored) is not None:
                self._take_from(stored, way.source)
            top = top_level(root.path, root.overlay) if way.how == "runtime" else None
            self._layout = Layout(root, self._directory, top, stored)
            self._layout.write(
                self._overlays.cache,
                self._unseen,
                on_node=way.on_node,
                by_fuse=way.how == "fuse",
            )
        except OSError as error:
            raise _impossible(error) from error

    def _take_from(self, stored: Copies, source: Source) -> None:
        if source != self._source:
            self._source = source
            if source == "unpacked":
                assert isinstance(stored, OwnFile)
                stored.unpack(self._why)
            elif source == "sent":
                stored.send(self._why)
        if self._unseen:
            stored.make(self._unseen)

    def try_(self, way: Way) -> Staged:
        """Let the node mount it, or try the mounts of the runtime; adds to config.json's."""
        layout = self._layout
        try:
            if way.how == "runtime":
                self._try_as_runtime(on_node=way.on_node)
            elif way.on_node:
                self._places += map(place_in, self._overlays.ask(making_in(layout.directory)))
            if way.on_node:
                layout.put(self._places)
            if way.how != "runtime":
                self._mount(by_fuse=way.how == "fuse")
        except OSError as error:
            raise _impossible(error) from error
        return self._staged(way)

    def _try_as_runtime(self, *, on_node: bool) -> None:
        if self._layout.images:
            self._packing.mount(self._layout.images, self._root.mounting)
        trial = self._layout.trial(on_node=on_node)
        answers = self._overlays.ask(trial.script(self._overlays.mounted))
        self._places += map(place_in, answers)
        trial.judge(answers)
        self._overlays.mounted.add(trial.kind)

    def _mount(self, *, by_fuse: bool) -> None:
        layout, looks = self._layout, self._layout.looks
        mounting = msgspec.structs.replace(
            self._root.mounting, roots=layout.roots, looks=looks.wanted, by_fuse=by_fuse
        )
        try:
            self._packing.mount(layout.images, mounting)
        except OthersThere as error:
            raise looks.unseen(error.numbers) from None
        if by_fuse:
            self._overlays.mounted.add(BY_FUSE)

    def undo(self, failure: Unusable) -> None:
        if made := [place for place in self._places if place]:
            with contextlib.suppress(Unusable):
                self._overlays.ask(removing(made, rootless=self._root.rootless))
        self._places.clear()
        self._packing.unmount()
        remove_link(self._directory)
        remove_all(self._directory, (OVERLAY, ROOTFS))
        self._why = str(failure)
        if isinstance(failure, Unseen):
            self._unseen |= failure.layers
        # the container that it was to be beside may be gone
        elif isinstance(failure, NotMounted) and not (failure.images or self._root.beside):
            self._overlays.mounted.add(NO_ROOT)

    def _staged(self, way: Way) -> Staged:
        layout, root = self._layout, self._root
        of_layers = [
            mount_of_layers(name, [*["ro"] * root.read_only, *words])
            for name, words in layout.options.items()
            if name
        ]
        self._config["mounts"] = of_layers + root.config["mounts"]
        image: Image = "store" if layout.from_store else "layers"
        if layout.images:
            image = "squashfs"
        places = tuple(self._places) if way.on_node else layout.places
        tasks = tuple(
            OfTask(place, self._last(number, place) if way.on_node else "")
            for number, place in enumerate(places)
        )
        return Staged(
            self._directory,
            root.path,
            self._notes(image, by_fuse=way.how == "fuse"),
            copied_from="" if self._final else root.path,
            image=image,
            place=places[0] if len(places) == 1 else "",
            tasks=tasks if len(places) > 1 else (),
            overlaid_directories=tuple(name for name in layout.options if name),
        )

    def _last(self, number: int, place: str) -> str:
        """Return what a task's node does at its end."""
        rootless = self._root.rootless
        if self._final:
            return removing([place], rootless=rootless)
        return sending(place, archive_of(self._directory, number), rootless=rootless)

    def _notes(self, image: Image, *, by_fuse: bool) -> tuple[str, ...]:
        path, packing = self._root.path, self._packing
        how = packing.way + ", after they were sent to the node" * packing.sent
        if file := self._root.file:
            by = f" by {how}" if image == "squashfs" else f", unpacked: {packing.why_not}"
            return (f"root: the node mounts {file}{by}; changes are not kept",)
        if self._root.image:
            return (f"root: the node mounts {path}; changes are not kept",)
        by = " by fuse-overlayfs" * by_fuse
        notes = [
            f"root: the node mounts {_LAYERS[image]} of {path}{by}; changes come back at the end"
        ]
        if image == "squashfs":
            notes.append(f"root: the images are mounted by {how}")
        return tuple(notes)


def _impossible(error: OSError) -> Unusable:
    return Unusable(f"cannot be laid out: {described(error)}")
