"""Adapts the mounts of a config.json to the target."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from scrun.core.errors import StagingError
from scrun.supervisor.contracts.target import Target
from scrun.supervisor.core.files import DIRECTORY_LIMIT, FILE_LIMIT
from scrun.supervisor.staging.plan import Copy, Notes, Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FILES = "files"

_BIND = frozenset(("bind", "rbind"))
# where container engines mount an init program, which the nodes may lack
_INITS = frozenset(("/dev/init", "/run/podman-init", "/sbin/docker-init"))
# what every machine has, so that a bind of it means the node's own
_EVERYWHERE = frozenset(("/", "/dev/shm", "/run", "/tmp", "/var/run", "/var/tmp"))
_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def fit_mounts(
    mounts: Sequence[dict[str, Any]],
    *,
    bundle: str,
    staged: str,
    target: Target,
    namespaces: frozenset[str],
    one_user: bool,
    sources: Mapping[str, Source],
    notes: Notes,
) -> tuple[list[dict[str, Any]], list[Copy]]:
    """Return the mounts that work at the target, changed where needed, and the files to copy.

    Args:
        mounts: The mounts of config.json; they are changed in place.
        bundle: The directory that relative sources of bind mounts start from.
        staged: The directory for the copies.
        target: The target.
        namespaces: The types of namespaces that the container creates.
        one_user: Whether it will have only one user and one group.
        sources: The properties of the sources.
        notes: Receives a line for each loss.
    """
    kept = []
    copies: list[Copy] = []
    for index, mount in enumerate(mounts):
        if target.rootless:
            _without_maps(mount, notes)
        if one_user:
            _without_ids(mount)
        if not is_bind(mount):
            if not target.rootless or _of_own_namespace(mount, namespaces, notes):
                kept.append(mount)
            continue
        path = mount["source"] = absolute(mount, bundle, index)
        source = sources.get(path, Source(kind="directory", real=path))
        path = mount["source"] = source.there or path
        if source.kind == "missing":
            if "nofail" not in options(mount):
                raise StagingError(f"mounts[{index}].source: {path} does not exist")
            notes.add(f"mount {mount['destination']} dropped: {path} does not exist")
        elif not (only_here(path, source, target, staged) or _is_init(mount, source, target)):
            kept.append(mount)
        elif source.kind == "directory" and mount["destination"].rstrip("/") == "/dev/shm":
            kept.append(_shared_memory(mount, source))
        elif why_not := _not_copied(source):
            notes.add(
                f"mount {mount['destination']} dropped: {path} is only on this machine, {why_not}"
            )
        else:
            copies.append(Copy(path, _name(index, path)))
            mount["source"] = os.path.join(staged, FILES, copies[-1].name)
            if source.kind == "directory":
                notes.add(
                    f"mount {mount['destination']}: {path} is only on this machine, so the "
                    "container has a copy; changes to it are lost"
                )
            kept.append(mount)
    return kept, copies


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


def only_here(path: str, source: Source, target: Target, staged: str) -> bool:
    """Return whether another machine would not find this at the same path."""
    if not target.elsewhere or below(path, staged) or of_every_machine(path):
        return False
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


def _is_init(mount: Mapping[str, Any], source: Source, target: Target) -> bool:
    """Return whether a mount is the program of `--init`, and can be copied."""
    ours = target.elsewhere and mount["destination"] in _INITS and source.kind == "file"
    return ours and _not_copied(source) is None


def below(path: str, directory: str) -> bool:
    """Return whether a path is a directory or in it; both are normalized."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _without_ids(mount: dict[str, Any]) -> None:
    """Drop options that name ids: a map of size 1 lacks them, which gives EINVAL."""
    if "options" in mount:
        mount["options"] = [
            option for option in options(mount) if not option.startswith(("uid=", "gid="))
        ]


def _without_maps(mount: dict[str, Any], notes: Notes) -> None:
    """Drop the id maps of a mount."""
    for key in ("uidMappings", "gidMappings"):
        notes.drop(mount, f"mount {mount['destination']}: ", key, "only root may map ids")


def _of_own_namespace(mount: dict[str, Any], namespaces: frozenset[str], notes: Notes) -> bool:
    """Change a mount of a kernel file system to one that a user namespace may have.

    The kernel lets a user namespace mount sysfs, proc and mqueue only together with its own
    network, pid and ipc namespace. Otherwise this binds the node's own tree.

    Returns:
        Whether there is still something to mount.
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


def _shared_memory(mount: dict[str, Any], source: Source) -> dict[str, Any]:
    """Replace podman's shm, a tmpfs in podman's own mount namespace, by a new tmpfs."""
    kept = [option for option in options(mount) if option not in _BIND]
    if not any(option.startswith("mode=") for option in kept):
        kept.append("mode=1777")
    if source.capacity:
        kept.append(f"size={source.capacity}")
    return {**mount, "type": "tmpfs", "source": "shm", "options": kept}


def _not_copied(source: Source) -> str | None:
    """Return why a source cannot be copied, or None."""
    if source.kind == "file":
        limit = FILE_LIMIT
    elif source.kind == "directory":
        limit = DIRECTORY_LIMIT
    elif source.kind == "unreadable":
        return "and cannot be read"
    else:
        return f"and a {source.kind} cannot be copied"
    return f"and larger than {limit >> 20} MiB" if source.size > limit else None


def _name(index: int, path: str) -> str:
    """Return a safe file name for the copy of a source."""
    base = _NAME.sub("_", os.path.basename(path))[:64].lstrip(".")
    return f"{index}-{base or 'file'}"
