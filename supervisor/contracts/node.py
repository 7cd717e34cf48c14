"""What a job on other machines can do for a stager."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from scrun.core.errors import EngineError


class NotThere(EngineError):
    """A file is not there on a node."""


class OthersThere(EngineError):
    """Directories are others on a node.

    Attributes:
        numbers: Which of `Mounting.looks`.
    """

    def __init__(self, numbers: Collection[int]) -> None:
        super().__init__("directories differ on the node")
        self.numbers = frozenset(numbers)


class RootRefused(EngineError):
    """A node refuses to mount an overlay: its kernel does, or it has no fuse-overlayfs."""


class ImageFile(msgspec.Struct, frozen=True):
    """An image for nodes that do not see it.

    Attributes:
        file: The file here.
        name: One that no other content has.
        size: Its bytes.
    """

    file: str
    name: str
    size: int


class Mounting(msgspec.Struct, frozen=True):
    """What to mount for a container.

    Attributes:
        files: For each task, or for all of them, images and the directories to mount them on.
            Without these, `roots` and `looks`: only tell whether images can be mounted.
        maps: `uidMappings` and `gidMappings` of the container, if it has several users and these
            are not root's.
        mine: Whether all files should belong to the user of the job, who is user 0 of a container
            with several users; not for root.
        known: For each image its inode, its bytes and the seconds of its time: a node may have
            something else by that name; empty: nothing else can have it.
        roots: For each task, or for all of them, an overlay that is the root file system: the
            directory to mount it on, the one that its options' paths begin in, and the options;
            empty: none.
        by_fuse: Whether fuse-overlayfs is to mount those, as the kernel refuses to.
        beside: Where config.json has the namespaces of another container, in whose user namespace
            they are to be mounted; "": in one of its own.
        looks: Directories that have to be the same on the nodes: the path, the inode, and the
            seconds of the time or None.
        network: Whether the container is to have a network of its own.
    """

    files: Sequence[Sequence[tuple[str, str]]] = ((),)
    maps: Mapping[str, Any] | None = None
    mine: bool = False
    known: Sequence[tuple[int, int, int]] = ()
    roots: Sequence[tuple[str, str, str]] = ()
    by_fuse: bool = False
    beside: str = ""
    looks: Sequence[tuple[str, int, int | None]] = ()
    network: bool = False

    @property
    def mounts(self) -> bool:
        """Whether it mounts anything."""
        return bool(self.roots) or any(self.files)

    @property
    def only_looks(self) -> bool:
        """Whether directories are looked at, and nothing else is asked."""
        return bool(self.looks) and not self.mounts

    def of(self, task: int) -> dict[str, Any]:
        """Return the words of a call of the shim of a task."""
        words = msgspec.structs.asdict(self)
        del words["roots"]
        root = self.roots and self.roots[task if len(self.roots) > 1 else 0]
        return {**words, "files": self.files[task if len(self.files) > 1 else 0], "root": root}


class NodeAnswer(msgspec.Struct, frozen=True):
    """The output of a script on a node.

    Attributes:
        node: The node's name.
        status: The script's exit status.
        text: Its standard output and error.
    """

    node: str
    status: int
    text: str
