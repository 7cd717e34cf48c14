"""Lays out a staged bundle whose root file system the node mounts from an engine's own layers.

::

    rootfs/NAME             where the node mounts the directory NAME of the root directory;
                            the files and links of that are here as copies
    overlay/l/N             links to the layers: short names in the options of the mounts
    overlay/mine/           a copy of the container's own layer, if that is small
    overlay/own/            copies of what the container's one user could not use
    overlay/upper/NAME      what the container writes
    overlay/work/NAME       the kernel's own
    overlay/trial/          for an attempt to mount, on the node

An overlay for each directory, as mounts of config.json, works with each runtime and however the
container is started. crun before 1.22 mounts nothing on the root directory itself. Everything here
blocks: call it in a worker thread.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from typing import TYPE_CHECKING, Any

import msgspec

from scrun.core.errors import described
from scrun.oci.userns import has_several
from scrun.supervisor.staging.copies import OPEN, Room, copy_all, copy_entry
from scrun.supervisor.staging.foreign import foreign_in
from scrun.supervisor.staging.layers import overlay_of, top_level
from scrun.supervisor.staging.node_trial import TRIAL, Trial
from scrun.supervisor.staging.overlay_options import (
    Unusable,
    is_plain,
    mount_of_layers,
    opaque,
    options_of,
)
from scrun.supervisor.staging.short_link import folder_of
from scrun.supervisor.staging.strangers import copy_foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from scrun.supervisor.staging.layers import TopLevel
    from scrun.supervisor.staging.overlay_options import Overlay
    from scrun.supervisor.staging.survey import MountPoint

OVERLAY = "overlay"
UPPER = "upper"
_OWN = (1 << 20, 200)  # bytes and entries


class Overlays(msgspec.Struct, frozen=True):
    """How a container's node is asked about overlays.

    Attributes:
        ask: Runs a script there, and returns what it printed.
        cache: The file for what is known of layers.
    """

    ask: Callable[[str], str]
    cache: str


class Rootfs(msgspec.Struct, frozen=True):
    """A root file system that an engine has mounted.

    Attributes:
        path: Its path, without links.
        mount: What is mounted there.
        config: The config.json that will run.
        rootless: Whether the container has rights in a user namespace only.
    """

    path: str
    mount: MountPoint
    config: dict[str, Any]
    rootless: bool


def lay_out(rootfs: Rootfs, directory: str, overlays: Overlays) -> None:
    """Lay out a staged bundle, make sure that the node can mount it, and add to its mounts.

    Args:
        rootfs: The root file system. Its config.json gets the mounts, before all others.
        directory: The staged bundle.
        overlays: How to ask the node.

    Raises:
        Unusable: It cannot be done; something may have been written.
    """
    if (rootfs.config.get("root") or {}).get("readonly"):
        raise Unusable("would be writable, and the container asks for a read-only one")
    if not is_plain(directory):
        raise Unusable(f"cannot be mounted in {directory!a}")
    overlay = overlay_of(rootfs.mount, rootfs.path)
    if overlay.users != rootfs.rootless:
        raise Unusable("have marks of deletions that the node does not read")
    if not rootfs.rootless and _has_users(rootfs.config):
        raise Unusable("cannot be mounted by a container with users of its own")
    try:
        layout = _Layout(rootfs, directory, overlay, top_level(rootfs.path, overlay))
        layout.write(overlays.cache)
        trial = layout.trial()
        trial.judge(overlays.ask(trial.script))
    except OSError as error:
        raise Unusable(f"cannot be laid out: {described(error)}") from error
    mounts = [mount_of_layers(name, words) for name, words in layout.options.items()]
    rootfs.config["mounts"] = mounts + (rootfs.config.get("mounts") or [])


def _has_users(config: Mapping[str, Any]) -> bool:
    namespaces = (config.get("linux") or {}).get("namespaces") or []
    return any(namespace["type"] == "user" for namespace in namespaces)


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[int]:
    fd = os.open(folder, OPEN)
    try:
        yield fd
    finally:
        os.close(fd)


class _Layout:
    """The files of one staged bundle.

    Attributes:
        options: The options of each mount, by the name in the root directory.
    """

    def __init__(self, rootfs: Rootfs, directory: str, overlay: Overlay, top: TopLevel) -> None:
        self.options: dict[str, list[str]] = {}
        self._rootfs = rootfs
        self._bundle = directory
        self._staged = os.path.join(directory, "rootfs")
        self._directory = os.path.join(directory, OVERLAY)
        self._overlay = overlay
        self._layers = overlay.layers
        self._top = top
        self._owners = not rootfs.rootless or has_several(rootfs.config)
        self._hidden = {
            posixpath.normpath(mount["destination"].lstrip("/"))
            for mount in rootfs.config.get("mounts") or []
        }

    def _path(self, *names: str) -> str:
        return os.path.join(self._directory, *names)

    def write(self, cache: str) -> None:
        """Write everything, and decide on the options.

        Args:
            cache: The file for what is known of layers.
        """
        os.mkdir(self._directory, 0o700)
        for name in ("l", "mine", "own", UPPER, "work", *TRIAL):
            os.mkdir(self._path(name), 0o700)
        self._try_attributes()
        self._copy_own_layer()
        layers = self._layers
        for number, layer in enumerate(layers):
            os.symlink(layer, self._path("l", str(number)))
        short = folder_of(self._path("l"), self._bundle, len(layers))
        whole = self._copy_strangers(cache)
        os.mkdir(self._staged, 0o700)
        for name, numbers in self._top.directories.items():
            below = [] if name in whole else [f"{short}/{number}" for number in numbers]
            self._directory_of_root(name, [self._path("own"), *below])
        self._others()
        self._dress(self._staged, self._rootfs.path)

    def _try_attributes(self) -> None:
        """Raise Unusable if deletions of whole directories could not be marked."""
        name = "user.scrun" if self._rootfs.rootless else "trusted.scrun"
        try:
            os.setxattr(self._path("own"), name, b"y")
        except OSError as error:
            where = f"extended attributes in {self._directory}"
            raise Unusable(f"need {where}: {error.strerror}") from error

    def _copy_own_layer(self) -> None:
        """Copy the container's own layer if it is small: it may be where the nodes do not look.

        Images can be in a store that all machines share, and containers on a local disk.
        """
        own = self._overlay.layers[0]
        mark = opaque(users=self._overlay.users)
        with contextlib.suppress(Unusable, PermissionError):  # else it is mounted as it is
            with _opened(own) as source, _opened(self._path("mine")) as target:
                copy_all(source, target, Room(*_OWN), owners=self._owners, opaque=mark)
            self._layers = (self._path("mine"), *self._overlay.layers[1:])

    def _copy_strangers(self, cache: str) -> frozenset[str]:
        """Copy what the one user cannot use; return what was copied as a whole."""
        if self._owners:
            return frozenset()
        foreign = foreign_in(self._overlay.layers, cache)
        return copy_foreign(foreign, self._rootfs.path, self._path("own"))

    def _directory_of_root(self, name: str, layers: list[str]) -> None:
        mount_point, upper = os.path.join(self._staged, name), self._path(UPPER, name)
        for path in (mount_point, upper, self._path("work", name)):
            os.mkdir(path, 0o700)
        for path in (mount_point, upper):  # the upper's are those of the mounted directory
            self._dress(path, os.path.join(self._rootfs.path, name))
        paths = [os.path.join(layer, name) for layer in layers]
        if self._top.directories[name] and name not in self._hidden:
            self.options[name] = options_of(
                [path for path in paths if os.path.isdir(path)],
                upper,
                self._path("work", name),
                users=self._rootfs.rootless,
            )

    def _dress(self, path: str, like: str) -> None:
        status = os.lstat(like)
        if self._owners:
            os.chown(path, status.st_uid, status.st_gid)
        os.chmod(path, stat.S_IMODE(status.st_mode))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _others(self) -> None:
        """Copy the files and links of the root directory."""
        room = Room()
        with _opened(self._rootfs.path) as source, _opened(self._staged) as target:
            for name in map(os.fsencode, self._top.others):
                room.take(copy_entry(source, target, name, room=room.left, owners=self._owners))

    def trial(self) -> Trial:
        """Return how the node tries the mount with the most layers."""
        lower = max(self.options.values(), key=lambda words: len(words[0]), default=[""])[0]
        return Trial(self._directory, lower, self._layers, rootless=self._rootfs.rootless)
