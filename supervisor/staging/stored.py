"""Has the store of images hold squashfs images of layers that the nodes do not see.

One is made for each layer, not for each image of an engine: these share layers, and each step of a
build adds one to those before. Its key is made of the layer's digest and of anything else that
decides how its files look to a node. Everything here blocks: call it in a worker thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from _blake2 import blake2s
from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from scrun.core.errors import EngineError, ImageError
from scrun.core.paths import real_id
from scrun.images.squashfs import FINE_FOR_USERS, entries, key_of
from scrun.images.store import ROOTFS, SQUASHFS, Entry, Facts, find_elsewhere, shrink
from scrun.oci.signals import its_end
from scrun.supervisor.contracts.target import (
    ImageFile,
    Mounting,
    NotThere,
    OthersThere,
    RootRefused,
)
from scrun.supervisor.staging.digests import contents
from scrun.supervisor.staging.image_store import (
    GIB,
    PACK,
    UNPACK,
    ContainerImages,
    Copier,
)
from scrun.supervisor.staging.layers import Unusable, is_plain
from scrun.supervisor.staging.layout import in_directory, names_in
from scrun.supervisor.staging.ways import BundleRefused, NotMounted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from scrun.images.leases import Lock
    from scrun.supervisor.staging.digests import LayerContent
    from scrun.supervisor.staging.layers import Overlay
    from scrun.supervisor.staging.layout import Find

NO_TOOL = "mksquashfs is not installed here"


class Mounter(msgspec.Struct, frozen=True):
    """How a container's node mounts a root file system, and images.

    Attributes:
        mount: Mounts them, for the container and for what the node is asked; returns by what.
            Without any it only tells. Raises what `supervisor.contracts.engine.Job.mount` says.
        send: Brings images to the nodes' own disks, and mounts them on directories as something
            without files says. Raises the same.
        unmount: Undoes both.
    """

    mount: Callable[[Mounting], str]
    send: Callable[[Sequence[tuple[ImageFile, str]], Mounting], None]
    unmount: Callable[[], None]


class Packing:
    """How the node mounts squashfs images (`supervisor.contracts.engine.Job.mount`).

    `way` is by what; "" if it was not asked, or cannot. `sent`: it does not see them.
    """

    def __init__(self, mounter: Mounter | None, *, mine: bool = False) -> None:
        """Take the node's mounter; `mine`: the files belong to this user, whatever is in them."""
        self._mounter, self._mine = mounter, mine
        self.way = ""
        self._mounted = False
        self.sent = False

    @cached_property
    def why_not(self) -> str:
        """Why the node can mount none; "" if it can. Asks it once."""
        if self._mounter is None:
            return "only a shim mounts images"
        try:
            self.way = self._mounter.mount(Mounting(mine=self._mine))
        except EngineError as error:
            return str(error)
        return ""

    def mount(self, files: Sequence[tuple[str, str]], mounting: Mounting) -> None:
        """Let the node mount images on directories, and everything else.

        Raises:
            NotMounted: It cannot.
            OthersThere: Directories are others there.
            BundleRefused: It mounts no such overlay.
        """
        assert self._mounter is not None
        mounting = msgspec.structs.replace(mounting, mine=self._mine)
        self._mounted = True
        try:
            known = [_known(file) for file, _ in files] if self._mine else []
            try:
                self._mounter.mount(msgspec.structs.replace(mounting, files=(files,), known=known))
            except NotThere:
                self.sent = True
                images = [(_described(file), point) for file, point in files]
                self._mounter.send(images, mounting)
        except OthersThere:
            raise
        except RootRefused as error:
            raise BundleRefused(f"cannot be mounted on the node: {error}") from error
        except (EngineError, Unusable) as error:
            raise NotMounted(str(error), images=bool(files)) from error

    def unmount(self) -> None:
        if self._mounter is not None and self._mounted:
            self._mounted = False
            with contextlib.suppress(EngineError):
                self._mounter.unmount()


def _known(file: str) -> tuple[int, int, int]:
    status = _status(file)
    return status.st_ino, status.st_size, int(status.st_mtime)


def _status(file: str) -> os.stat_result:
    try:
        return os.stat(file)
    except OSError as error:
        raise Unusable(f"{file}: {error.strerror}") from error


def _described(file: str) -> ImageFile:
    """Name an image by its key in the store, and by when it was made."""
    status = _status(file)
    key = key_of(file)
    if os.path.basename(file) == SQUASHFS and not os.path.islink(file):
        key = os.path.basename(os.path.dirname(file))
    name = f"{key}.{status.st_size:x}-{status.st_mtime_ns:x}"
    return ImageFile(file, name, status.st_size)


_FORMAT = 1


def progress(done: int, total: int) -> str:
    """Say how many of the bytes of an image there are; 0: it is not known how many it has."""
    of = f" of {max(total, done) / GIB:.1f}" if total else ""
    return f"{done / GIB:.1f}{of} GiB"


class Copies(ABC):
    """What nodes mount in place of the layers of one root file system.

    `there` are copies by the numbers of their layers; with `packing` squashfs images are mounted.
    They are sent to a node that does not see the store.
    """

    def __init__(self, images: ContainerImages, packing: Packing) -> None:
        self._images = images
        self.packing = packing
        self.there: dict[int, str] = {}
        self.are_images = True
        self.is_seen = True
        self.wait = images.copier.wait

    @property
    def folder(self) -> str:
        """The store, or the nearest directory above it that exists."""
        return self._images.folder

    @abstractmethod
    def send(self, why: str) -> None:
        """Have images sent to the node, which does not see the store."""

    @abstractmethod
    def make(self, numbers: Collection[int]) -> None:
        """Keep copies of some layers in the store; the rest of them stays as it is."""

    def look_for(self, paths: Sequence[str], folder: str) -> Find | None:
        """Return what tells what there is on some paths; None: it is seen here.

        In `folder`, to be made, is what has to be unpacked to know.
        """
        return None


class StoredLayers(Copies):
    """The layers of one root file system, and squashfs images of them.

    An image costs a file system one file instead of thousands.
    """

    def __init__(
        self,
        overlay: Overlay,
        images: ContainerImages,
        packing: Packing,
        *,
        rootless: bool,
        owners: bool,
    ) -> None:
        """Look for images. The first layer is the container's own, and has none in the store."""
        super().__init__(images, packing)
        self._overlay = overlay
        marks = "user" if rootless else "trusted"
        self._how = (marks, "owners" if owners else "one", "fuse" if overlay.by_fuse else "kernel")
        self._ids = _id_maps() if owners else [str(real_id("uid")), str(real_id("gid"))]
        if images.also or os.path.isdir(images.path):
            self._find()

    @cached_property
    def _contents(self) -> list[LayerContent | None]:
        return [None, *contents(self._overlay.layers[1:])]

    def _find(self) -> None:
        for number, content in enumerate(self._contents):
            if content is None:
                continue
            key = self._key(content)
            entry = find_elsewhere(self._images.also, key)
            if entry is None and os.path.isdir(os.path.join(self._images.path, key)):
                entry = None if self.packing.why_not else self._images.keep(key)
            if entry and not self.packing.why_not and is_plain(entry.directory):
                self._take(number, entry)

    def _take(self, number: int, entry: Entry) -> None:
        self.there[number] = os.path.join(entry.directory, SQUASHFS)

    def send(self, why: str) -> None:
        if why_not := self.packing.why_not:
            unseen = f"{why}; nor is the store of images, {self._images.path}"
            raise Unusable(f"{unseen}, nor can images be sent: {why_not}")
        self.is_seen = False

    def make(self, numbers: Collection[int]) -> None:
        numbers = set(numbers).difference(self.there)
        wanted = {n: c for n in sorted(numbers) if (c := self._contents[n]) is not None}
        if not wanted:
            return
        tool = shutil.which("mksquashfs")
        if why_not := self.packing.why_not or NO_TOOL * (tool is None):
            raise Unusable(f"cannot be squashfs images: {why_not}")
        progress = _Progress(self._images.copier, sum(content.size for content in wanted.values()))
        for number, content in wanted.items():
            self._have(number, content, str(tool), progress)
            progress.add(content.size)
        shrink(self._images.store, self._images.limit)

    def _have(self, number: int, content: LayerContent, tool: str, progress: _Progress) -> None:
        """Have an image, and make it by mksquashfs if it is not there."""
        mark, owners, kind = self._how
        whose = "owners" if owners == "owners" else ":".join(self._ids)
        layer = self._overlay.layers[number]

        def fill(directory: str, lock: Lock) -> Facts:
            image = os.path.join(directory, SQUASHFS)
            words = (layer, image, mark, whose, kind, tool)
            self._images.copier.run(PACK, words, lambda count: lock.say(progress.at(count)))
            return Facts(source=f"layer {content.digest}", digest=content.digest)

        def waiting(said: str) -> None:
            progress.show(said)
            self.wait()

        self._take(number, self._images.have(self._key(content), fill, waiting, content.size))

    def _key(self, content: LayerContent) -> str:
        parts = [_FORMAT, content.digest, *self._how[:2], *self._ids, "squashfs"]
        return f"layer-{blake2s(msgspec.json.encode(parts), digest_size=24).hexdigest()}"


class _Progress:
    def __init__(self, copier: Copier, total: int) -> None:
        self._copier = copier
        self._total = total
        self._before = 0

    def add(self, size: int) -> None:
        self._before += size

    def at(self, count: int) -> str:
        """Show that so many bytes of a layer are copied; return what others may show."""
        done = self._before + count
        text = progress(done, self._total)
        self.show(text, done / self._total if self._total else None)
        return text

    def show(self, text: str, share: float | None = None) -> None:
        said = f"image: {text}" if text else "image: somebody else is copying it"
        self._copier.say(said, share)


def _id_maps() -> list[str]:
    """Return how this process' users are those of the machine: owners are kept as they are."""
    found = []
    for kind in ("uid", "gid"):
        with open(f"/proc/self/{kind}_map", encoding="ascii") as file:
            found.append(" ".join(file.read().split()))
    return found


_FILE = 1  # the number of its layer; the one above has nothing


class OwnFile(Copies):
    """A user's own squashfs file.

    Where the node mounts no images, the store of images has its files, unpacked once.
    """

    def __init__(self, file: str, key: str, images: ContainerImages, packing: Packing) -> None:
        """Decide how the node gets a file, whose `key_of` was `key` before."""
        super().__init__(images, packing)
        self._file, self._key = file, key
        self._check()
        self.there[_FILE] = file
        if why_not := packing.why_not:
            self.unpack(why_not)

    def _check(self) -> None:
        try:
            same = key_of(self._file) == self._key
        except ImageError as error:
            raise Unusable(f"no longer exist: {error}") from error
        if not same:
            raise Unusable("have changed: the file was replaced while the container was made")

    def send(self, why: str) -> None:
        """Raise Unusable: what the node mounts is sent at once, and it mounts nothing."""
        raise Unusable(f"{why}, nor can it be sent: {self.packing.why_not}")

    def make(self, numbers: Collection[int]) -> None:
        """Do nothing: it is there."""

    def unpack(self, why: str) -> None:
        if not self.are_images:
            return
        self.packing.why_not = why

        size = os.stat(self._file).st_size

        def fill(directory: str, lock: Lock) -> Facts:
            self._images.copier.say("image: it is being unpacked")
            lock.say("it is being unpacked")
            words = (self._file, os.path.join(directory, ROOTFS))

            def tell(count: int) -> None:
                text = f"{progress(min(count, size), size)} are unpacked"
                self._images.copier.say(f"image: {text}", count / size)
                lock.say(text)

            self._images.copier.run(UNPACK, words, tell)
            return Facts(source=f"{self._file}, unpacked")

        def waiting(said: str) -> None:
            self._images.copier.say("image: somebody else is unpacking it")
            self.wait()

        key = key_of(self._file, unpacked=True)
        entry = self._images.have(key, fill, waiting, size)
        self._check()
        self.there[_FILE], self.are_images = entry.rootfs, False
        shrink(self._images.store, self._images.limit)

    def look_for(self, paths: Sequence[str], folder: str) -> Find:
        by_depth: dict[int, set[str]] = {}
        for parts in map(names_in, paths):
            for depth in range(1, len(parts) + 1):
                by_depth.setdefault(depth, set()).add("/".join(parts[:depth]))
        os.mkdir(folder, 0o700)
        # each depth by itself: a directory that others are made in may be read-only
        for depth, some in by_depth.items():
            command = entries(self._file, os.path.join(folder, str(depth)), depth, sorted(some))
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
            if done.returncode not in FINE_FOR_USERS:
                raise Unusable(f"cannot be read: unsquashfs {its_end(done.returncode)}")

        return lambda parts: in_directory(os.path.join(folder, str(len(parts))))(parts)
