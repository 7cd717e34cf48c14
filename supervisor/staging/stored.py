"""Has the store of images hold copies of layers that the nodes do not see.

A copy is made once for each layer, not for each image: images share layers, and each step of a
build adds one to those before. The key of a copy is made of the layer's digest and of anything
else that decides how its files look to a node. Everything here blocks: call it in a worker thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from _blake2 import blake2s
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import msgspec

from scrun.core.errors import EngineError, ImageError
from scrun.core.paths import real_id
from scrun.images.limits import shrink
from scrun.images.squashfs import FINE_FOR_USERS, entries, key_of
from scrun.images.store import ROOTFS, SQUASHFS, Entry, Facts, find_elsewhere
from scrun.supervisor.contracts.node import ImageFile, Mounting, NotThere, OthersThere, RootRefused
from scrun.supervisor.staging.digests import contents
from scrun.supervisor.staging.image_store import (
    COPY,
    GIB,
    PACK,
    UNPACK,
    ContainerImages,
    Copier,
    Full,
)
from scrun.supervisor.staging.layers import Unusable, is_plain
from scrun.supervisor.staging.read_only import in_directory, names_in
from scrun.supervisor.staging.ways import BundleRefused, NotMounted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from scrun.images.locks import Lock
    from scrun.settings.file.load import ImageFormat
    from scrun.supervisor.staging.digests import LayerContent
    from scrun.supervisor.staging.layers import Overlay
    from scrun.supervisor.staging.read_only import Find

NO_TOOL = "mksquashfs is not installed here"


def tool() -> str | None:
    """Return the program that makes images, if there is one."""
    return shutil.which("mksquashfs")


class Mounter(msgspec.Struct, frozen=True):
    """How a container's node mounts a root file system, and images.

    Attributes:
        mount: Mounts them, for the container and for what the node is asked; returns by what.
            Without any it only tells. Raises what `supervisor.contracts.node.MountsImages` says.
        send: Brings images to the nodes' own disks, and mounts them on directories as something
            without files says. Raises the same.
        unmount: Undoes both.
    """

    mount: Callable[[Mounting], str]
    send: Callable[[Sequence[tuple[ImageFile, str]], Mounting], None]
    unmount: Callable[[], None]


class Packing:
    """Whether copies of layers are squashfs images, one file each, or directories.

    An image is made in a third of the time, and costs a file system one file instead of thousands.
    A node has to mount it, which the shim does (`supervisor.contracts.node.MountsImages`).

    Attributes:
        way: By what the node mounts images; "" if it was not asked, or cannot.
        why_not: Why copies are directories, though they were to be images; "" if they are not.
        tool: The program that makes images.
        sent: Whether they were sent to the node, which does not see them.
    """

    def __init__(
        self, mounter: Mounter | None, wanted: ImageFormat, *, mine: bool = False
    ) -> None:
        """Take the node's mounter, if it has one, and the setting `[images] format`.

        `mine` says that the files belong to this user, whoever owns what is in them.
        """
        self._mounter, self._wanted, self._mine = mounter, wanted, mine
        self.why_not = ""
        self.way = ""
        self.tool = tool()
        self._decided = False
        self._mounted = False
        self.sent = False

    @property
    def is_possible(self) -> bool:
        """Whether the node can mount images; asks it once.

        Raises:
            Unusable: It cannot, and nothing else is wanted.
        """
        if not self._decided:
            self._decided = True
            if self._wanted != "files":
                self._ask()
        return bool(self.way)

    def _ask(self) -> None:
        if self._mounter is None:
            self.why_not = "only a shim mounts images"
        else:
            try:
                self.way = self._mounter.mount(Mounting(mine=self._mine))
            except EngineError as error:
                self.why_not = str(error)
        self._insist()

    def _insist(self) -> None:
        if self.why_not and self._wanted == "squashfs":
            raise Unusable(f"cannot be squashfs images: {self.why_not}")

    @property
    def is_made(self) -> bool:
        """Whether new copies are to be images.

        Raises:
            Unusable: That is impossible, and nothing else is wanted.
        """
        if self.is_possible and self.tool is None:
            self.why_not = NO_TOOL
            self._insist()
        return self.is_possible and self.tool is not None

    def give_up(self, why_not: str) -> None:
        """Have no images: the node failed to mount them, or one could not be made.

        Raises:
            Unusable: Nothing else is wanted.
        """
        self.why_not, self.way = why_not, ""
        self._insist()

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
        """Undo `mount`, if it was called."""
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

    Attributes:
        there: The copies that there are, by the numbers of their layers.
        packed: The numbers of those that are squashfs images.
        packing: Whether they may be that.
        is_seen: Whether the node sees the store; else it has squashfs images sent.
    """

    def __init__(self, images: ContainerImages, packing: Packing) -> None:
        self._images = images
        self.packing = packing
        self.there: dict[int, str] = {}
        self.packed: set[int] = set()
        self.is_seen = True

    @property
    def folder(self) -> str:
        """The store, or the nearest directory above it that exists."""
        return self._images.folder

    @abstractmethod
    def send(self, why: str) -> None:
        """Have squashfs images sent to the node, which does not see the store.

        Raises:
            Unusable: There can be none.
        """

    def unpack(self, why: str) -> frozenset[int]:
        """Do without squashfs images, which the node could not mount; return whose these were.

        Raises:
            Unusable: Nothing else is wanted, or of use.
        """
        self.packing.give_up(why)
        if not self.is_seen:
            raise Unusable(why)
        numbers = frozenset(self.packed)
        self.packed.clear()
        for number in numbers:
            del self.there[number]
        return numbers

    @abstractmethod
    def make(self, numbers: Collection[int]) -> None:
        """Keep copies of some layers in the store; the rest of them stays as it is.

        Raises:
            Unusable: A copy could not be made.
        """

    @abstractmethod
    def copy(self, number: int, into: str) -> None:
        """Copy a layer that has no digest; call it for small ones, or a container's own.

        Args:
            into: An empty directory.

        Raises:
            Unusable: It cannot be copied.
        """

    def look_for(self, paths: Sequence[str], folder: str) -> Find | None:
        """Return what tells what there is on some paths; None: it is seen here.

        Args:
            folder: A directory to be made, for what has to be unpacked to know.

        Raises:
            Unusable: It cannot be read.
        """
        return None


class StoredLayers(Copies):
    """The layers of one root file system, and their copies."""

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
        super().__init__(images, packing)
        self._overlay = overlay
        marks = "user" if rootless else "trusted"
        self._how = (marks, "owners" if owners else "one", "fuse" if overlay.by_fuse else "kernel")
        self._ids = _id_maps() if owners else [str(real_id("uid")), str(real_id("gid"))]
        self._known: list[LayerContent | None] | None = None
        if images.also or os.path.isdir(images.path):
            self._find()

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
        if entry := self._images.keep(key):
            self._take(number, entry, packed=packed)
        return entry is not None

    def send(self, why: str) -> None:
        unseen = f"{why}; nor is the store of images, {self._images.path}"
        if not self.packing.is_possible:
            why_not = self.packing.why_not or "[images] format is files"
            raise Unusable(f"{unseen}, nor can images be sent: {why_not}")
        self.is_seen = False
        self.there.clear()
        self.packed.clear()
        self._find()

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
            shrink(self._images.store, self._images.limit)

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
        self._take(number, self._images.have(key, fill, waiting, content.size), packed=packed)

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


_FILE = 1  # the number of its layer; the one above has nothing


class OwnFile(Copies):
    """A user's own squashfs file, as a copy of a layer; see `Copies`.

    Where the node mounts no images, the store of images has its files, unpacked once.
    """

    def __init__(self, file: str, key: str, images: ContainerImages, packing: Packing) -> None:
        """Decide how the node gets it.

        Args:
            file: Its path, without links.
            key: What `key_of` returned when its root directory was read.

        Raises:
            Unusable: The file has changed since; or it cannot be unpacked.
        """
        super().__init__(images, packing)
        self._file, self._key = file, key
        self._check()
        if packing.is_possible:
            self.there[_FILE] = file
            self.packed.add(_FILE)
        else:
            self.make((_FILE,))

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
        """Keep its files in the store."""
        if _FILE in self.there or _FILE not in numbers:
            return

        def fill(directory: str, lock: Lock) -> Facts:
            self._images.copier.say("image: it is being unpacked")
            lock.say("it is being unpacked")
            words = (self._file, os.path.join(directory, ROOTFS))
            self._images.copier.run(UNPACK, words, lambda count: None)
            return Facts(source=f"{self._file}, unpacked")

        def waiting(said: str) -> None:
            self._images.copier.say("image: somebody else is unpacking it")
            self._images.copier.wait()

        key = key_of(self._file, unpacked=True)
        entry = self._images.have(key, fill, waiting, os.stat(self._file).st_size)
        self._check()
        self.there[_FILE] = entry.rootfs
        shrink(self._images.store, self._images.limit)

    def copy(self, number: int, into: str) -> None:
        """Do nothing: the layer above has nothing."""

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
                raise Unusable(f"cannot be read: unsquashfs: status {done.returncode}")

        def find(parts: Sequence[str]) -> os.stat_result | None:
            return in_directory(os.path.join(folder, str(len(parts))))(parts)

        return find
