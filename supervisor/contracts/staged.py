"""The result of staging."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from scrun.model.record import Moved

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OVERLAY = "overlay"
"""The directory of a staged bundle that has what a node mounts as overlays."""

Image = Literal["", "layers", "store", "squashfs", "copy"]
"""Where a container's root file system is from: the submitted one, mounts of the engine's layers,
a mount of a user's squashfs file that the store has unpacked, mounts of squashfs images, or a copy
of its own."""

MOUNTED = ("layers", "store", "squashfs")
"""The node mounts it."""


class ShownMount(msgspec.Struct, frozen=True):
    """A mount of the container.

    Attributes:
        path: The path in the container; its links are not resolved.
        source: The source on this machine; "" if it is neither a file nor a directory.
        read_only: Whether the container cannot write to it.
        own: Whether each machine has its own, so that this one's must not be shown.
    """

    path: str
    source: str = ""
    read_only: bool = False
    own: bool = False


class View(msgspec.Struct, frozen=True):
    """The files of a container, as engines should see them here.

    Attributes:
        rootfs: The container's root file system, on this machine.
        bundle: The bundle that runs. The file systems of these two are the same on the nodes,
            otherwise the container could not run there.
        elsewhere: Whether the container is on another machine, where other file systems may have
            different content.
        read_only: Whether the container cannot write to its root file system.
        places: The mounts over it, in order.
    """

    rootfs: str
    bundle: str
    elsewhere: bool
    read_only: bool = False
    places: tuple[ShownMount, ...] = ()


class OfTask(msgspec.Struct, frozen=True):
    """What is a task's own, of a container of several tasks.

    Attributes:
        place: The directory with what it writes, instead of `overlay` of the staged bundle.
        last: A script for its node when it has ended, or was never made; "": none.
    """

    place: str
    last: str = ""


def config_of_task(config: Mapping[str, Any], bundle: str, own: OfTask) -> dict[str, Any]:
    """Return the config.json of one task: no two overlays can have the same upper directory."""
    before = f"{bundle}/{OVERLAY}/"
    mounts = [
        {**mount, "options": with_place(mount["options"], before, own.place)}
        if mount.get("type") == "overlay"
        else mount
        for mount in config.get("mounts") or []
    ]
    return {**config, "mounts": mounts}


def with_place(options: Iterable[str], before: str, place: str) -> list[str]:
    """Return the options of an overlay with another place for what is written.

    That replaces the beginning `before` of the directories.
    """
    found = []
    for word in options:
        name, _, path = word.partition("=")
        if name in ("upperdir", "workdir") and path.startswith(before):
            found.append(f"{name}={place}/{path.removeprefix(before)}")
        else:
            found.append(word)
    return found


class Staged(msgspec.Struct, frozen=True):
    """A staged bundle.

    Attributes:
        arguments: The command that it runs: process.args.
        moved: What a script's stage_out needs, if there is one.
        copied_from: Where the container's changes go at the end; "" if they are there already, or
            are not wanted.
        place: The directory on its node with what it writes; "": it is in the staged bundle.
        tasks: What is each task's own, of a container of several; empty: they have all the same.
        view: What to show engines of the container's files; None if this machine does not know
            where they are.
        missed: The engine's options that have no effect, for its user.
        final: Whether nothing comes back, so that the container's end need not wait for that.
        sockets: The engine's sockets here that it mounts, by where it does.
        overlaid_directories: The names in the root directory that have an overlay each.
    """

    bundle: str
    rootfs: str
    notes: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    moved: Moved | None = None
    copied_from: str = ""
    image: Image = ""
    place: str = ""
    tasks: tuple[OfTask, ...] = ()
    view: View | None = None
    missed: tuple[str, ...] = ()
    final: bool = False
    sockets: dict[str, str] = {}
    overlaid_directories: tuple[str, ...] = ()

    @property
    def on_nodes(self) -> bool:
        """Whether something has to be asked of its nodes when it has ended."""
        return bool(self.place) or any(task.last for task in self.tasks)

    @property
    def overlaid(self) -> bool:
        """Whether what the container changes is not to be seen in `rootfs`."""
        return self.image in MOUNTED
