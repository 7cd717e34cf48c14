"""Decides which files of a container are visible on this machine. Pure.

Container engines access the files of a running container, as with `podman cp`, in the mount
namespace of its anchor. Files there have to be the container's files, or must not exist. So a
mount whose content only the node has (/tmp, a tmpfs, /dev) is covered by something that fails, and
what is below it is hidden too.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from scrun.supervisor.contracts.staged import ShownMount, View
from scrun.supervisor.staging.mounts import below, is_bind, of_every_machine, options

if TYPE_CHECKING:
    from collections.abc import Mapping

_PROCESSES = "/proc"  # only the anchor's processes are visible here


def view_of(config: Mapping[str, Any], rootfs: str, bundle: str, *, elsewhere: bool) -> View:
    """Return what to show of a container; see `View`."""
    shown: list[ShownMount] = []
    hidden = [_PROCESSES]
    for mount in config.get("mounts") or []:
        path = posixpath.normpath("/" + mount["destination"].lstrip("/"))
        if any(below(path, other) for other in hidden):
            continue
        mounted = ShownMount(path)
        if is_bind(mount):
            source = posixpath.normpath(posixpath.join(bundle, mount["source"]))
            own = elsewhere and of_every_machine(source)
            mounted = ShownMount(path, source, "ro" in options(mount), own)
        if mounted.own or not mounted.source:
            hidden.append(path)
        shown.append(mounted)
    read_only = bool((config.get("root") or {}).get("readonly"))
    return View(rootfs, bundle, elsewhere, read_only, tuple(shown))
