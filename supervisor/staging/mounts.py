"""Adapts the mounts of a config.json to the target, and decides what is visible here. Pure.

Container engines access the files of a running container, as with `podman cp`, in the mount
namespace of its anchor. Files there have to be the container's files, or must not exist. So a
mount whose content only the node has (/tmp, a tmpfs, /dev) is covered by something that fails, and
what is below it is hidden too.
"""

from __future__ import annotations

import os
import os.path
import posixpath
from _blake2 import blake2s
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from scrun.core.errors import StagingError, shortened
from scrun.supervisor.contracts.staged import ShownMount, View
from scrun.supervisor.contracts.target import Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_MOST = 1000
_MOST_MISSED = 8  # enough for one line


class MountSource(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a path on this machine that config.json names.

    Attributes:
        kind: The file type; "unreadable" if unknown.
        real: The path without symbolic links.
        there: The path on the nodes, if it differs: they lack an engine's mounts for one
            container.
        private: Whether only this machine, or mount namespace, has its file system: tmpfs,
            overlay.
        size: The bytes in a file, or in the regular files of a directory; a directory is measured
            only if it may be copied, and only slightly beyond the limit.
        capacity: The size in bytes of the tmpfs that is mounted there, else 0.
        own: Whether the container's engine made it for this container alone.
        mine: Whether a socket belongs to this user.
    """

    kind: Literal["file", "directory", "fifo", "socket", "device", "missing", "unreadable"]
    real: str = ""
    there: str = ""
    private: bool = False
    size: int = 0
    capacity: int = 0
    own: bool = False
    mine: bool = False


DATA = "data"
"""The directory of a volume with its copy."""


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """A mount whose source only this machine has, so that the container has a copy, in `place`."""

    destination: str
    source: str
    place: str
    is_file: bool
    read_only: bool
    shared: bool

    @property
    def comes_back(self) -> bool:
        """Whether its user looks for changes here, and not only the engine."""
        return self.shared and not self.read_only

    @property
    def data(self) -> str:
        return data_in(self.place, self.source, is_file=self.is_file)


def data_in(place: str, source: str, *, is_file: bool) -> str:
    """Return the path of a copy."""
    return os.path.join(place, DATA, *[os.path.basename(source)] * is_file)


class Plan(msgspec.Struct, frozen=True):
    """The result of the policy: a line for the log about each loss, options without effect.

    `sockets` are the engine's that are reached from there, by where they are mounted. `outer` are
    the maps of a user namespace around the container's, in the form of config.json.
    """

    config: dict[str, Any]
    volumes: tuple[Volume, ...]
    notes: tuple[str, ...]
    missed: tuple[str, ...] = ()
    sockets: dict[str, str] = {}
    outer: dict[str, Any] | None = None


class Notes:
    """Collects lines for the log, and removes members of config.json with a line for each."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.missed: list[str] = []

    def miss(self, option: str) -> None:
        """Add a container engine's option without effect, for a message to the user."""
        if len(self.missed) < _MOST_MISSED:
            self.missed.append(shortened(option))
        elif len(self.missed) == _MOST_MISSED:
            self.missed.append("…")

    def add(self, line: str) -> None:
        """Add a line; an image may cause any number of lines, of any length."""
        if len(self.lines) < _MOST:
            self.lines.append(shortened(line))
        elif len(self.lines) == _MOST:
            self.lines.append("further losses are not listed")

    def drop(self, where: dict[str, Any], prefix: str, key: str, why: str) -> None:
        """Remove a member, and add a line unless it was null or empty."""
        if key not in where:
            return
        value = where.pop(key)
        if value not in (None, "", [], {}):
            self.add(f"{prefix}{key} dropped: {why}")


FILES = "files"
_LARGEST_INIT = 4 << 20

_ENGINE_SOCKETS = frozenset(("docker.sock", "podman.sock"))
_BIND = frozenset(("bind", "rbind"))
# where container engines mount an init program, which the nodes may lack
_INITS = frozenset(("/dev/init", "/run/podman-init", "/sbin/docker-init"))
# what every machine has, so that a bind of it means the node's own
_EVERYWHERE = frozenset(("/", "/dev/shm", "/run", "/tmp", "/var/run", "/var/tmp"))


class CopyPlaces(msgspec.Struct, frozen=True):
    """Where copies of what only this machine has are; `shared` are those that containers share.

    One has at most `limit` bytes; 0: any number.
    """

    shared: str
    limit: int


def fit_mounts(
    mounts: Sequence[dict[str, Any]],
    *,
    bundle: str,
    staged: str,
    place: CopyPlaces,
    target: Target,
    namespaces: frozenset[str],
    one_user: bool,
    sources: Mapping[str, MountSource],
    notes: Notes,
) -> tuple[list[dict[str, Any]], list[Volume], dict[str, str]]:
    """Return the mounts that work at the target, changed where needed, and what to copy.

    The third is the engine's sockets that are reached from there, as `Plan` has them. The mounts
    are changed in place; relative sources of bind mounts start from `bundle`. StagingError if one
    cannot be had there.
    """
    kept = []
    volumes: list[Volume] = []
    sockets: dict[str, str] = {}
    for index, mount in enumerate(mounts):
        if target.rootless:
            for key in ("uidMappings", "gidMappings"):
                notes.drop(mount, f"mount {mount['destination']}: ", key, "only root may map ids")
        if one_user:
            _without_ids(mount)
        layers = directories_of_overlay(mount)
        if any(
            path in sources and only_here(path, sources[path], target, staged) for path in layers
        ):
            # podman mounts images so, and volumes with the option O: one directory, perhaps an
            # empty one below it, and what is written is thrown away
            writable = any(option.startswith("upperdir=") for option in options(mount))
            mount |= {"type": "bind", "options": ["rbind", *["ro"] * (not writable)]}
            source = msgspec.structs.replace(sources[layers[0]], own=True)
            volumes.append(_volume(mount, index, source, staged, place))
            mount["source"] = volumes[-1].data
            kept.append(mount)
            continue
        if not is_bind(mount):
            if not target.rootless or _of_own_namespace(mount, namespaces, notes):
                kept.append(mount)
            continue
        path = mount["source"] = absolute(mount, bundle, index)
        source = sources.get(path, MountSource(kind="directory", real=path))
        path = mount["source"] = source.there or path
        alone = only_here(path, source, target, staged)
        can_fail = "nofail" in options(mount)
        if source.kind == "missing" and target.elsewhere and not (alone or can_fail):
            kept.append(mount)  # the node decides: it cannot leave it out
        elif source.kind == "missing":
            if not can_fail:
                raise StagingError(f"mounts[{index}].source: {path} does not exist")
            notes.add(f"mount {mount['destination']} dropped: {path} does not exist")
        elif target.sockets and source.mine and is_engine_socket(path):
            sockets[mount["destination"]] = source.real
            kept.append(mount)
        elif not (alone or _is_init(mount, source, target)):
            kept.append(mount)
        elif source.capacity and mount["destination"].rstrip("/") == "/dev/shm":
            kept.append(_shared_memory(mount, source))
        elif source.kind not in ("file", "directory"):
            if source.kind == "unreadable":
                raise StagingError(f"mounts[{index}].source: {path} cannot be read")
            why = f"{path} is only on this machine, and a {source.kind} cannot be copied"
            notes.add(f"mount {mount['destination']} dropped: {why}")
            notes.miss(f"the mount {mount['destination']} ({path} is a {source.kind} here)")
        else:
            volumes.append(_volume(mount, index, source, staged, place))
            mount["source"] = volumes[-1].data
            kept.append(mount)
            if volumes[-1].shared:
                back = "" if volumes[-1].read_only else "; changes to it come back at the end"
                notes.add(
                    f"mount {mount['destination']}: {path} is only on this machine, so the "
                    f"container has a copy{back}"
                )
    return kept, _merged(volumes, kept, nested=target.rootless), sockets


def is_engine_socket(path: str) -> bool:
    """Tell whether a path is called as the socket at which an engine's API is served."""
    return os.path.basename(path) in _ENGINE_SOCKETS


def _merged(volumes: list[Volume], mounts: list[dict[str, Any]], *, nested: bool) -> list[Volume]:
    """Make one copy for all mounts of a volume, and for those below its source.

    Args:
        mounts: The mounts; changed in place.
        nested: Whether those below it use its copy. Not for root: another container may put a link
            in place of a directory, which would lead a mount to the node's own files.
    """
    outer = {one.source: one for one in reversed(volumes) if one.shared and not one.is_file}
    found: dict[str, Volume] = {}
    moved: dict[str, str] = {}
    for volume in volumes:
        whole = volume
        if nested and volume.shared:
            above = (outer[path] for path in _from_the_top(volume.source) if path in outer)
            whole = next(above, volume)
        if whole.source != volume.source:
            inside = os.path.relpath(volume.source, whole.source)
            moved[volume.data] = os.path.join(whole.data, inside)
        known = found.get(whole.place, whole)
        read_only = known.read_only and whole.read_only and volume.read_only
        found[whole.place] = msgspec.structs.replace(known, read_only=read_only)
    for mount in mounts if moved else ():
        if (there := moved.get(mount.get("source", ""))) is not None:
            mount["source"] = there
    return [*found.values()]


def _from_the_top(path: str) -> Iterator[str]:
    """Yield the directories above an absolute, normalized path, from the root on, and itself."""
    yield "/"
    at = path.find("/", 1)
    while at > 0:
        yield path[:at]
        at = path.find("/", at + 1)
    if path != "/":
        yield path


def _volume(
    mount: Mapping[str, Any], index: int, source: MountSource, staged: str, place: CopyPlaces
) -> Volume:
    """Return where the copy of a mount's source is; StagingError if it is too large for one."""
    destination, path = mount["destination"], source.real or mount["source"]
    if place.limit and source.size > place.limit:
        raise StagingError(
            f"mount {destination}: {path} is only on this machine, and has more than "
            f"{place.limit >> 20} MiB: move it to a directory that the nodes share, or raise "
            "`copy_size` in the section [staging] of scrun.toml"
        )
    shared = not (source.own or destination in _INITS)
    key = blake2s(os.fsencode(path), digest_size=12).hexdigest()
    return Volume(
        destination=destination,
        source=path,
        place=os.path.join(place.shared, key) if shared else f"{staged}/{FILES}/{index}",
        is_file=source.kind == "file",
        read_only=_is_read_only(mount) or destination in _INITS,
        shared=shared,
    )


def directories_of_overlay(mount: Mapping[str, Any]) -> list[str]:
    """Return the directories of a mount of type overlay: the lower ones first, from the top."""
    if mount.get("type") != "overlay":
        return []
    found = {}
    for option in options(mount):
        name, _, path = option.partition("=")
        found[name] = path.split(":") if name == "lowerdir" else [path]
    names = ("lowerdir", "upperdir", "workdir")
    return [os.path.normpath(path) for name in names for path in found.get(name, ()) if path]


def binds(mounts: Sequence[Mapping[str, Any]], bundle: str) -> Iterator[str]:
    """Yield the absolute sources of the bind mounts."""
    for index, mount in enumerate(mounts):
        if is_bind(mount):
            yield absolute(mount, bundle, index)


def options(mount: Mapping[str, Any]) -> list[str]:
    """Return the options of a mount, which may be absent or null."""
    return mount.get("options") or []


def is_bind(mount: Mapping[str, Any]) -> bool:
    """Return whether a mount is a bind mount; like runc and crun, by its type or an option."""
    return mount.get("type") == "bind" or not _BIND.isdisjoint(options(mount))


def absolute(mount: Mapping[str, Any], bundle: str, index: int) -> str:
    """Return the absolute source of a bind mount; relative ones start from the bundle."""
    source = mount.get("source")
    if not source:
        raise StagingError(f"mounts[{index}].source: missing; a bind mount needs it")
    return os.path.normpath(os.path.join(bundle, source))


def only_here(path: str, source: MountSource, target: Target, staged: str) -> bool:
    """Return whether another machine would not find this at the same path."""
    if not target.elsewhere or below(path, staged) or of_every_machine(path):
        return False
    if source.kind == "socket" and is_engine_socket(path):  # whatever the file system
        return True
    return source.private or any(
        below(candidate, prefix)
        for candidate in (path, source.real)
        for prefix in target.host_only
        if candidate != prefix
    )


def of_every_machine(path: str) -> bool:
    """Return whether every machine has its own, so that a bind of it means the node's."""
    if path in _EVERYWHERE or any(below(path, tree) for tree in ("/etc", "/proc", "/sys")):
        return True
    return below(path, "/dev") and not below(path, "/dev/shm")


def _is_read_only(mount: Mapping[str, Any]) -> bool:
    """Return whether a mount is read-only; as with mount(8), the last option counts."""
    return [option for option in options(mount) if option in ("ro", "rw")][-1:] == ["ro"]


def _is_init(mount: Mapping[str, Any], source: MountSource, target: Target) -> bool:
    """Return whether a mount is the program of `--init`, and can be copied."""
    ours = target.elsewhere and mount["destination"] in _INITS and source.kind == "file"
    return ours and source.size <= _LARGEST_INIT


def below(path: str, directory: str) -> bool:
    """Return whether a path is a directory or in it; both are normalized."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _without_ids(mount: dict[str, Any]) -> None:
    """Drop options that name ids: a map of size 1 lacks them, which gives EINVAL."""
    if "options" in mount:
        mount["options"] = [
            option for option in options(mount) if not option.startswith(("uid=", "gid="))
        ]


def _of_own_namespace(mount: dict[str, Any], namespaces: frozenset[str], notes: Notes) -> bool:
    """Change a mount of a kernel file system to one that a user namespace may have.

    The kernel lets a user namespace mount sysfs, proc and mqueue only together with its own
    network, pid and ipc namespace. Otherwise this binds the node's own tree. Returns whether there
    is still something to mount.
    """
    kind = mount.get("type")
    if (kind == "sysfs" and "network" not in namespaces) or (
        kind == "proc" and "pid" not in namespaces
    ):
        mount["type"] = "bind"
        mount["source"] = "/sys" if kind == "sysfs" else "/proc"
        mount["options"] = ["rbind", *options(mount)]
    elif kind == "mqueue" and "ipc" not in namespaces:
        notes.add(f"mount {mount['destination']} dropped: no ipc namespace to take it from")
        return False
    return True


def _shared_memory(mount: dict[str, Any], source: MountSource) -> dict[str, Any]:
    """Replace podman's shm, a tmpfs in podman's own mount namespace, by a new tmpfs."""
    kept = [option for option in options(mount) if option not in _BIND]
    if not any(option.startswith("mode=") for option in kept):
        kept.append("mode=1777")
    if source.capacity:
        kept.append(f"size={source.capacity}")
    return {**mount, "type": "tmpfs", "source": "shm", "options": kept}


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
