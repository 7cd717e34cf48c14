"""What a job on other machines can do for a stager."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from scrun.core.errors import EngineError


class NotThere(EngineError):
    """A file is not there on a node."""


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


@runtime_checkable
class OnNodes(Protocol):
    """A job on other machines; optional."""

    @property
    def separate_tasks(self) -> int:
        """How many tasks can have mounts of their own; 0: all have the same, on several nodes."""
        ...

    async def ask(self, script: Callable[[int], str]) -> list[str]:
        """Run a shell script for each of these tasks on its node, before the container runs.

        Args:
            script: Returns the script for a task. If all have the same mounts, the one for task 0
                is run on each node.

        Returns:
            Their standard output and error.

        Raises:
            EngineError: One could not be run.
        """
        ...


@runtime_checkable
class MountsImages(OnNodes, Protocol):
    """One that can mount images, files of squashfs, for its container; optional."""

    async def mount(
        self, files: Sequence[Sequence[tuple[str, str]]], maps: Mapping[str, Any] | None = None
    ) -> str:
        """Mount images on the nodes, for each task, until the container ends or `unmount`.

        `ask` and the container find them there, and nobody else.

        Args:
            files: For each task, images, and the directories to mount them on; none: only tell
                whether it can be done.
            maps: `uidMappings` and `gidMappings` of the container, if it has several users and
                these are not root's.

        Returns:
            By what.

        Raises:
            NotThere: A node does not see one of them.
            EngineError: They cannot be mounted.
        """
        ...

    async def send(
        self, images: Sequence[ImageFile], limit: int, say: Callable[[int, int], None]
    ) -> list[list[str]]:
        """Bring images to the nodes' own disks, where they stay until `unmount`, and longer.

        Args:
            images: The images.
            limit: The most bytes of all images on a node; 0: any number.
            say: Called with how many bytes have been sent, and how many there will be.

        Returns:
            Their paths, for each task.

        Raises:
            EngineError: They could not be sent.
        """
        ...

    async def unmount(self) -> None:
        """Undo `mount` and `send`, if the container has not done so."""
        ...
