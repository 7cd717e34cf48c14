"""A root file system that is a user's own squashfs file: mounted by the node, or unpacked.

Where the node mounts no images, the store of images has its files, unpacked once. Everything here
blocks: call it in a worker thread.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from scrun.core.errors import ImageError
from scrun.images.limits import shrink
from scrun.images.squashfs import FINE_FOR_USERS, entries, key_of
from scrun.images.store import ROOTFS, Facts
from scrun.supervisor.staging.image_access import ImageAccess
from scrun.supervisor.staging.overlay_options import Unusable
from scrun.supervisor.staging.read_only import in_directory, names_in

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from scrun.images.locks import Lock
    from scrun.supervisor.staging.image_access import ContainerImages
    from scrun.supervisor.staging.packing import Packing
    from scrun.supervisor.staging.read_only import Find

UNPACK = "unpack_image"
"""The name of `supervisor/programs/unpack_image.py`."""

_FILE = 1  # the number of its layer; the one above has nothing


class OwnFile:
    """Such a file, as a copy of a layer (`supervisor.staging.stored.Copies`)."""

    def __init__(self, file: str, key: str, images: ContainerImages, packing: Packing) -> None:
        """Decide how the node gets it.

        Args:
            file: Its path, without links.
            key: What `key_of` returned when its root directory was read.

        Raises:
            Unusable: The file has changed since; or it cannot be unpacked.
        """
        self._file, self._key, self._images = file, key, images
        self._kept = ImageAccess(images)
        self._check()
        self.packing = packing
        self.there: dict[int, str] = {}
        self.packed: set[int] = set()
        self.is_seen = True
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

    @property
    def folder(self) -> str:
        return self._kept.folder

    def send(self, why: str) -> None:
        """Raise Unusable: what the node mounts is sent at once, and it mounts nothing."""
        raise Unusable(f"{why}, nor can it be sent: {self.packing.why_not}")

    def unpack(self, why: str) -> frozenset[int]:
        """Do without mounting it; see `Copies`."""
        self.packing.give_up(why)
        self.there.clear()
        self.packed.clear()
        return frozenset((_FILE,))

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
        entry = self._kept.have(key, fill, waiting, os.stat(self._file).st_size)
        self._check()
        self.there[_FILE] = entry.rootfs
        shrink(self._kept.store, self._images.limit)

    def copy(self, number: int, into: str) -> None:
        """Do nothing: the layer above has nothing."""

    def look_for(self, paths: Sequence[str], folder: str) -> Find:
        """Return what tells what there is on some paths.

        Raises:
            Unusable: The file cannot be read.
        """
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
