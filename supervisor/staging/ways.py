"""Plans how a container's nodes get its root file system. Pure.

All ways that are possible form a ladder, the best one first. A try that fails rules out the ways
that would fail for the same reason, and the next one is tried. The last way always works.
"""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from scrun.oci.userns import has_several
from scrun.supervisor.contracts.target import Mounting
from scrun.supervisor.staging.layers import Overlay, Unusable

if TYPE_CHECKING:
    from scrun.supervisor.staging.overlaid import Overlays

Source = Literal["", "there", "copies", "unpacked", "sent"]
"""Where the layers of an overlay are from: the engine, or the store where that has images already;
the store, which gets images of those that nodes do not see; a user's file, unpacked in the store;
images that are sent to nodes that do not see the store."""

How = Literal["in place", "shim", "fuse", "runtime", "copy"]
"""The nodes use it where it is; the shim mounts one overlay, by the kernel or by fuse-overlayfs;
the runtime mounts one for each directory in the root directory; the container has a copy."""


class Way(msgspec.Struct, frozen=True):
    """A way; `on_node`: what the container writes is on its nodes, else in the staged bundle."""

    how: How
    source: Source = ""
    on_node: bool = False


class RootFilesystem(msgspec.Struct, frozen=True):
    """A root file system.

    Attributes:
        path: Its path on the nodes, without links.
        config: The config.json of its container.
        rootless: Whether the container has rights in a user namespace only.
        why_moved: Why containers cannot use it where it is; "" if they can.
        image: The directory in the store of the image that it is; "" if it is an engine's.
        file: The user's squashfs file that this image is; "" if it has files.
        outer: The maps of a user namespace around the container's; None: there is none.
        overlay: Its layers, if they are known.
        why_not: Why neither these nor copies can be mounted, as the end of a sentence about them.
        tasks: How many tasks have one of their own.
    """

    path: str
    config: dict[str, Any]
    rootless: bool
    why_moved: str = ""
    image: str = ""
    file: str = ""
    outer: dict[str, Any] | None = None
    overlay: Overlay = Overlay((), users=False)
    why_not: str = ""
    tasks: int = 1

    @property
    def read_only(self) -> bool:
        return bool((self.config.get("root") or {}).get("readonly"))

    @property
    def owners(self) -> bool:
        """Whether its files have more than one owner."""
        return not self.rootless or has_several(self.config)

    @property
    def _of_users(self) -> list[dict[str, Any]]:
        namespaces = (self.config.get("linux") or {}).get("namespaces") or []
        return [namespace for namespace in namespaces if namespace["type"] == "user"]

    @property
    def beside(self) -> str:
        """Where config.json has another container's namespaces, if that of users is one; or "".

        A user namespace around both is the same one.
        """
        paths = [one.get("path") or "" for one in self._of_users]
        return os.path.dirname(paths[0]) if paths and self.outer is None else ""

    @property
    def mounting(self) -> Mounting:
        """Mount nothing, for its users."""
        maps = self.outer
        if maps is None and self.rootless and self.owners:
            maps = {name: self.config["linux"][name] for name in ("uidMappings", "gidMappings")}
        return Mounting(maps=maps, users=self.outer is not None, beside=self.beside)

    def why_no_overlay(self, overlays: Overlays) -> str:
        """Return why no overlay can be mounted, as the end of a sentence about layers; or ""."""
        if self._of_users and not self.rootless:
            return "cannot be mounted by a container with users of its own"
        if not (overlays.tasks or self.read_only):
            return (
                "cannot be mounted by several tasks of srun --container, which have the "
                "same mounts: two overlays cannot write to one directory"
            )
        return self.why_not or self.overlay.why_not * (not overlays.has_store)


class Unseen(Unusable):
    """Nodes see the staged bundle, but not all layers: the numbers of those.

    `store`: they see the store of images.
    """

    def __init__(self, why: str, layers: frozenset[int], *, store: bool) -> None:
        super().__init__(why)
        self.layers = layers
        self.store = store


class BundleRefused(Unusable):
    """What is written cannot be in the staged bundle; or nothing can be mounted at all."""


class NotMounted(Unusable):
    """The shim could not mount something; `images`: there were images to mount."""

    def __init__(self, why: str, *, images: bool) -> None:
        super().__init__(why)
        self.images = images


def ways(root: RootFilesystem, overlays: Overlays | None, *, remote: bool) -> list[Way]:
    """Return the ways, the best first; `remote`: no overlay can write to the staged bundle."""
    if not root.why_moved:
        return [Way("in place")]
    if overlays is None or root.why_no_overlay(overlays):
        return [Way("copy")]
    sources: list[Source] = [] if root.overlay.why_not else ["there"]
    if overlays.has_store:
        sources += ["unpacked" if root.file else "copies", "sent"]
    mounts = _mounts(root, overlays, remote=remote)
    overlaid = [Way(how, source, on_node) for how, on_node in mounts for source in sources]
    return [*overlaid, Way("copy")]


def _mounts(root: RootFilesystem, overlays: Overlays, *, remote: bool) -> list[tuple[How, bool]]:
    """Return who may mount, and whether what is written is on the nodes.

    An overlay may be refused for where it is to write, too.
    """
    places = [False]
    if overlays.keeps and not (root.rootless and root.owners) and not root.read_only:
        places = [True] if remote else [False, True]
    found: list[tuple[How, bool]] = []
    # the only user of another container's namespace has a different uid there than outside
    if overlays.has_shim and (root.owners or not root.beside):
        if not overlays.needs_fuse:
            found += [("shim", on_node) for on_node in places]
        if root.rootless:
            found.append(("fuse", places[0]))
    if root.outer is not None:  # the container's root could not write where the user can
        return found
    return found + [("runtime", on_node) for on_node in places]


def remaining(ladder: list[Way], failure: Unusable) -> list[Way]:
    """Return the ways that are left after the first one has failed."""
    tried, *others = ladder
    return [way for way in others if way.how == "copy" or _is_left(way, tried, failure)]


def _is_left(way: Way, tried: Way, failure: Unusable) -> bool:
    match failure:
        case BundleRefused():
            return (way.how, way.on_node) != (tried.how, tried.on_node)
        case NotMounted(images=True):
            return way.source == "unpacked" and tried.source != "sent"
        case NotMounted():
            return way.how == "runtime"
        case Unseen(store=True):  # what is in the store is there, so it is not what is missing
            return tried.source == "there" != way.source
        case Unseen():
            return way.source == "sent" != tried.source
    return False
