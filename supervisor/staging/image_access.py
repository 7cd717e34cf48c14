"""A container's access to the store of images, and how more gets into it.

Everything here blocks: call it in a worker thread.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from scrun.core.errors import ImageError
from scrun.core.trees import remove_tree
from scrun.images.limits import shrink
from scrun.images.store import Store
from scrun.supervisor.staging.overlay_options import Unusable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrun.images.leases import Lease
    from scrun.images.store import Entry, Fill
    from scrun.settings.file.load import ImageFormat

GIB = 1 << 30


class Full(Unusable):
    """There is no room for a copy."""


class Copier(msgspec.Struct, frozen=True):
    """How layers are copied.

    Attributes:
        run: Runs COPY or PACK with these arguments; calls back with the bytes copied so far.
            Raises Unusable; Full if there is no room.
        say: Shows in one line how far it is.
        wait: Called now and then while somebody else copies; raises when there is nobody any more
            to wait for it.
    """

    run: Callable[[str, Sequence[str], Callable[[int], None]], None]
    say: Callable[[str], None]
    wait: Callable[[], None]


class ContainerImages(msgspec.Struct, frozen=True):
    """The store of images, for one container.

    Attributes:
        path: Its directory; it may not exist yet.
        limit: The most bytes of the store; 0: any number.
        also: Further stores, which are only read.
        format: The wanted format, see `scrun.settings.file.load.ImageSettings`.
    """

    path: str
    lease: Lease
    copier: Copier
    limit: int = 0
    also: Sequence[str] = ()
    format: ImageFormat = "auto"
    discard: Callable[[str], None] = remove_tree


class ImageAccess:
    """The store of images, as one container uses it.

    Attributes:
        folder: Its directory, or the nearest one above it that exists.
        store: The store, which is made if it is missing. Raises Unusable: it cannot be made.
    """

    def __init__(self, images: ContainerImages) -> None:
        self._images = images
        self._store: Store | None = None

    @property
    def folder(self) -> str:
        folder = self._images.path
        while not os.path.isdir(folder) and folder != "/":
            folder = os.path.dirname(folder)
        return folder

    @property
    def store(self) -> Store:
        if self._store is None:
            try:
                self._store = Store(self._images.path, self._images.discard)
            except ImageError as error:
                raise Unusable(f"cannot be copied: {error}") from error
        return self._store

    def keep(self, key: str) -> Entry | None:
        """Keep an image from being removed; None if it is not there.

        Raises:
            Unusable: The store cannot be written.
        """
        store = self.store
        if store.find(key) is None:  # whoever makes it has the lock
            return None
        try:
            return store.lease(key, self._images.lease)
        except OSError as error:
            raise Unusable(f"cannot be kept in {store.path}: {error.strerror}") from error

    def have(self, key: str, fill: Fill, waiting: Callable[[str], None], size: int) -> Entry:
        """Return an image, which is kept from now on; make it if it is not there.

        Args:
            fill: Makes it; again if there was no room, and others could be removed.
            size: How large it will be; 0: unknown.

        Raises:
            Unusable: It cannot be made.
        """
        if entry := self.keep(key):
            return entry
        store = self.store
        try:
            _made(store, key, fill, waiting)
        except Full:
            if not shrink(store, self._images.limit, more=size or GIB):
                raise
            _made(store, key, fill, waiting)
        if entry := self.keep(key):
            return entry
        raise Unusable(f"were removed from {store.path} meanwhile")


def _made(store: Store, key: str, fill: Fill, waiting: Callable[[str], None]) -> None:
    try:
        store.make(key, fill, waiting)
    except (ImageError, OSError) as error:
        raise Unusable(f"cannot be copied: {error}") from error
