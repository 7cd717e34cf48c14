"""What of a container's files can be seen from this machine; pure.

An engine that works with the files of a running container, as `podman cp` does, does so in the
mount namespace of its anchor. What is there has to be what the container has, or not to be there.
So a mount whose content only the node has (its /tmp, a tmpfs, /dev) is covered there by something
that fails, and what lies below it is not seen either.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

import msgspec

from supervisor.staging.mounts import below, is_bind, of_every_machine, options

if TYPE_CHECKING:
    from collections.abc import Mapping

_PROCESSES = "/proc"  # the anchor's own, which is all that can be seen from here


class Place(msgspec.Struct, frozen=True):
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
    places: tuple[Place, ...] = ()


def view_of(config: Mapping[str, Any], rootfs: str, bundle: str, *, elsewhere: bool) -> View:
    """Tell what can be shown of a container.

    Args:
        config: The config.json that runs.
        rootfs: See View.
        bundle: See View.
        elsewhere: See View.
    """
    places: list[Place] = []
    hidden = [_PROCESSES]
    for mount in config.get("mounts") or []:
        path = posixpath.normpath("/" + mount["destination"].lstrip("/"))
        if any(below(path, other) for other in hidden):
            continue
        place = Place(path)
        if is_bind(mount):
            source = posixpath.normpath(posixpath.join(bundle, mount["source"]))
            own = elsewhere and of_every_machine(source)
            place = Place(path, source, "ro" in options(mount), own)
        if place.own or not place.source:
            hidden.append(path)
        places.append(place)
    read_only = bool((config.get("root") or {}).get("readonly"))
    return View(rootfs, bundle, elsewhere, read_only, tuple(places))
