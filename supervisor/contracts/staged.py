"""A staged bundle: what staging promises to whoever runs it."""

from __future__ import annotations

import msgspec

from scrun.model.record import Moved


class ShownMount(msgspec.Struct, frozen=True):
    """Where something is mounted.

    Attributes:
        path: In the container; no link in it has been resolved yet.
        source: What is mounted there, by its name on this machine; "": no file or directory.
        read_only: Whether the container may not write to it.
        own: Whether each machine has one of its own, so that this one's is not to be seen.
    """

    path: str
    source: str = ""
    read_only: bool = False
    own: bool = False


class View(msgspec.Struct, frozen=True):
    """What is to be shown.

    Attributes:
        rootfs: The root file system that the container uses, on this machine.
        bundle: The bundle that runs. What is on the file systems of these two is the same on the
            nodes, or the container could not run there.
        elsewhere: Whether the container is on another machine, where what is on other file systems
            may be something else.
        read_only: Whether the container may not write to its root file system.
        places: The mounts over it, in their order.
    """

    rootfs: str
    bundle: str
    elsewhere: bool
    read_only: bool = False
    places: tuple[ShownMount, ...] = ()


class Staged(msgspec.Struct, frozen=True):
    """A staged bundle.

    Attributes:
        bundle: Its directory.
        rootfs: Its root file system.
        notes: Lines for the log.
        missed: Options of the engine's that have no effect, for its user.
        arguments: The command that it runs: process.args.
        moved: What a script's stage_out has to know, if there is one.
        copied_from: What `rootfs` was copied from, "" if it was not: at the end the changes go
            back there.
        view: What engines can be shown of the container's files here; None if it is not known
            here where they are.
    """

    bundle: str
    rootfs: str
    notes: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    moved: Moved | None = None
    copied_from: str = ""
    view: View | None = None
    missed: tuple[str, ...] = ()
