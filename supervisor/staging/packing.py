"""Decides whether copies of layers are squashfs images, one file each, or directories.

An image is made in a third of the time, and costs a file system one file instead of thousands. A
node has to mount it, which the shim does (`supervisor.contracts.node.Mounts`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING

import msgspec

from scrun.images.squashfs import key_of
from scrun.images.store import SQUASHFS
from scrun.supervisor.contracts.node import ImageFile, Mounting
from scrun.supervisor.staging.overlay_options import Unusable
from scrun.supervisor.staging.ways import BundleRefused, NotMounted, Others

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrun.settings.file.load import ImageFormat

NO_TOOL = "mksquashfs is not installed here"


def tool() -> str | None:
    """Return the program that makes images, if there is one."""
    return shutil.which("mksquashfs")


class NotSeen(Unusable):
    """The node does not see an image."""


class Mounter(msgspec.Struct, frozen=True):
    """How a container's node mounts a root file system, and images.

    Attributes:
        mount: Mounts them, for the container and for what the node is asked; returns by what.
            Without any it only tells. Raises Unusable; NotSeen if an image is not there, Others if
            directories are others, Refused if the kernel refuses an overlay.
        send: Brings images to the nodes' own disks, and mounts them on directories as something
            without files says. Raises Unusable.
        unmount: Undoes both.
    """

    mount: Callable[[Mounting], str]
    send: Callable[[Sequence[tuple[ImageFile, str]], Mounting], None]
    unmount: Callable[[], None]


class Packing:
    """The decision for one container.

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
            except Unusable as error:
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
            Others: Directories are others there.
            Refused: It mounts no such overlay.
        """
        assert self._mounter is not None
        mounting = msgspec.structs.replace(mounting, mine=self._mine)
        self._mounted = True
        try:
            known = [_known(file) for file, _ in files] if self._mine else []
            try:
                self._mounter.mount(msgspec.structs.replace(mounting, files=(files,), known=known))
            except NotSeen:
                self.sent = True
                images = [(_described(file), point) for file, point in files]
                self._mounter.send(images, mounting)
        except (Others, BundleRefused):
            raise
        except Unusable as error:
            raise NotMounted(str(error), images=bool(files)) from error

    def unmount(self) -> None:
        """Undo `mount`, if it was called."""
        if self._mounter is not None and self._mounted:
            self._mounted = False
            with contextlib.suppress(Unusable):
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
