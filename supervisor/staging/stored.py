"""Has the store of images hold copies of layers that the nodes do not see.

A copy is made once for each layer, not for each image: images share layers, and each step of a
build adds one to those before. The key of a copy is made of the layer's digest and of anything
else that decides how its files look to a node. Everything here blocks: call it in a worker thread.
"""

from __future__ import annotations

import os
from _blake2 import blake2s
from typing import TYPE_CHECKING, Protocol

import msgspec

from scrun.core.paths import real_id
from scrun.images.limits import shrink
from scrun.images.store import ROOTFS, SQUASHFS, Entry, Facts, find_elsewhere
from scrun.supervisor.staging.digests import contents
from scrun.supervisor.staging.image_access import GIB, ContainerImages, Copier, Full, ImageAccess
from scrun.supervisor.staging.overlay_options import Unusable, is_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from scrun.images.locks import Lock
    from scrun.supervisor.staging.digests import LayerContent
    from scrun.supervisor.staging.overlay_options import Overlay
    from scrun.supervisor.staging.packing import Packing

COPY, PACK = "copy_layer", "pack_layer"
"""The names of `supervisor/programs/copy_layer.py` and `pack_layer.py`."""
NO_ROOM = 3
"""Their exit status for that."""

_FORMAT = 1


def progress(done: int, total: int) -> str:
    """Say how many of the bytes of an image there are; 0: it is not known how many it has."""
    of = f" of {max(total, done) / GIB:.1f}" if total else ""
    return f"{done / GIB:.1f}{of} GiB"


class Copies(Protocol):
    """What nodes mount in place of the layers of one root file system.

    Attributes:
        there: The copies that there are, by the numbers of their layers.
        packed: The numbers of those that are squashfs images.
        packing: Whether they may be that.
        is_seen: Whether the node sees the store; else it has squashfs images sent.
    """

    there: dict[int, str]
    packed: set[int]
    packing: Packing
    is_seen: bool

    @property
    def folder(self) -> str:
        """The store, or the nearest directory above it that exists."""
        ...

    def send(self, why: str) -> None:
        """Have squashfs images sent to the node, which does not see the store.

        Raises:
            Unusable: There can be none.
        """
        ...

    def unpack(self, why: str) -> frozenset[int]:
        """Do without squashfs images, which the node could not mount; return whose these were.

        Raises:
            Unusable: Nothing else is wanted.
        """
        ...

    def make(self, numbers: Collection[int]) -> None:
        """Keep copies of some layers in the store; the rest of them stays as it is.

        Raises:
            Unusable: A copy could not be made.
        """
        ...

    def copy(self, number: int, into: str) -> None:
        """Copy a layer that has no digest; call it for small ones, or a container's own.

        Args:
            into: An empty directory.

        Raises:
            Unusable: It cannot be copied.
        """
        ...


class StoredLayers:
    """The layers of one root file system, and their copies; see `Copies`."""

    def __init__(
        self,
        overlay: Overlay,
        images: ContainerImages,
        packing: Packing,
        *,
        rootless: bool,
        owners: bool,
    ) -> None:
        """Look for copies. The first layer is the container's own, and has no copy in the store.

        Args:
            rootless: Whether the container has rights in a user namespace only.
            owners: Whether its files have more than one owner.
        """
        self._overlay = overlay
        self._images = images
        self._kept = ImageAccess(images)
        marks = "user" if rootless else "trusted"
        self._how = (marks, "owners" if owners else "one", "fuse" if overlay.by_fuse else "kernel")
        self._ids = _id_maps() if owners else [str(real_id("uid")), str(real_id("gid"))]
        self._known: list[LayerContent | None] | None = None
        self.there: dict[int, str] = {}
        self.packed: set[int] = set()
        self.packing = packing
        self.is_seen = True
        if images.also or os.path.isdir(images.path):
            self._find()

    @property
    def path(self) -> str:
        """The directory of the store."""
        return self._images.path

    @property
    def folder(self) -> str:
        return self._kept.folder

    def _contents(self) -> list[LayerContent | None]:
        if self._known is None:
            self._known = [None, *contents(self._overlay.layers[1:])]
        return self._known

    def _find(self) -> None:
        for number, content in enumerate(self._contents()):
            if content is None:
                continue
            # a directory is there without more, if it is seen
            for packed in (False, True) if self.is_seen else (True,):
                key = self._key(content, packed=packed)
                if entry := find_elsewhere(self._images.also, key):
                    if not packed or (self.packing.is_possible and is_plain(entry.directory)):
                        self._take(number, entry, packed=packed)
                        break
                elif self._is_kept(number, key, packed=packed):
                    break

    def _take(self, number: int, entry: Entry, *, packed: bool) -> None:
        self.there[number] = os.path.join(entry.directory, SQUASHFS) if packed else entry.rootfs
        if packed:
            self.packed.add(number)

    def _is_kept(self, number: int, key: str, *, packed: bool) -> bool:
        if not os.path.isdir(os.path.join(self._images.path, key)):
            return False
        if packed and not self.packing.is_possible:
            return False
        if entry := self._kept.keep(key):
            self._take(number, entry, packed=packed)
        return entry is not None

    def send(self, why: str) -> None:
        unseen = f"{why}; nor is the store of images, {self.path}"
        if not self.packing.is_possible:
            why_not = self.packing.why_not or "[images] format is files"
            raise Unusable(f"{unseen}, nor can images be sent: {why_not}")
        self.is_seen = False
        self.there.clear()
        self.packed.clear()
        self._find()

    def unpack(self, why: str) -> frozenset[int]:
        self.packing.give_up(why)
        if not self.is_seen:
            raise Unusable(why)
        numbers = frozenset(self.packed)
        self.packed.clear()
        for number in numbers:
            del self.there[number]
        return numbers

    def make(self, numbers: Collection[int]) -> None:
        numbers = set(numbers).difference(self.there)
        if not numbers:
            return
        wanted = {n: c for n in sorted(numbers) if (c := self._contents()[n]) is not None}
        progress = _Progress(self._images.copier, sum(content.size for content in wanted.values()))
        for number, content in wanted.items():
            if self.packing.is_made:
                try:
                    self._have(number, content, progress, packed=True)
                except Full:
                    raise
                except Unusable as error:
                    self.packing.give_up(str(error))
            if number not in self.there:
                if not self.is_seen:
                    raise Unusable(f"cannot be sent to the node: {self.packing.why_not}")
                self._have(number, content, progress, packed=False)
            progress.add(content.size)
        if wanted:
            shrink(self._kept.store, self._images.limit)

    def _have(
        self, number: int, content: LayerContent, progress: _Progress, *, packed: bool
    ) -> None:
        """Have a copy, and make it if it is not there."""
        layer = self._overlay.layers[number]

        def fill(directory: str, lock: Lock) -> Facts:
            def tell(count: int) -> None:
                lock.say(progress.at(count))

            if packed:
                self._pack(layer, os.path.join(directory, SQUASHFS), tell)
            else:
                target = os.path.join(directory, ROOTFS)
                os.mkdir(target, 0o700)
                self._images.copier.run(COPY, (layer, target, *self._how), tell)
            return Facts(source=f"layer {content.digest}", digest=content.digest)

        def waiting(said: str) -> None:
            progress.show(said)
            self._images.copier.wait()

        key = self._key(content, packed=packed)
        self._take(number, self._kept.have(key, fill, waiting, content.size), packed=packed)

    def copy(self, number: int, into: str) -> None:
        words = (self._overlay.layers[number], into, *self._how)
        self._images.copier.run(COPY, words, lambda count: None)

    def _pack(self, layer: str, image: str, tell: Callable[[int], None]) -> None:
        mark, owners, kind = self._how
        whose = "owners" if owners == "owners" else ":".join(self._ids)
        words = (layer, image, mark, whose, kind, self.packing.tool or "")
        self._images.copier.run(PACK, words, tell)

    def _key(self, content: LayerContent, *, packed: bool) -> str:
        parts = [_FORMAT, content.digest, *self._how[:2], *self._ids]
        parts += ["squashfs"] if packed else []
        return f"layer-{blake2s(msgspec.json.encode(parts), digest_size=24).hexdigest()}"


class _Progress:
    """How far the copies of one root file system are."""

    def __init__(self, copier: Copier, total: int) -> None:
        self._copier = copier
        self._total = total
        self._before = 0

    def add(self, size: int) -> None:
        self._before += size

    def at(self, count: int) -> str:
        """Show that so many bytes of a layer are copied; return what others may show."""
        text = progress(self._before + count, self._total)
        self.show(text)
        return text

    def show(self, text: str) -> None:
        self._copier.say(f"image: {text}" if text else "image: somebody else is copying it")


def _id_maps() -> list[str]:
    """Return how this process' users are those of the machine: owners are kept as they are."""
    found = []
    for kind in ("uid", "gid"):
        with open(f"/proc/self/{kind}_map", encoding="ascii") as file:
            found.append(" ".join(file.read().split()))
    return found
