"""The name of the supervisor that serves a container."""

import posix

from scrun.cli.parse import Parsed
from scrun.core.place import Place, here
from scrun.core.version import VERSION

OWN = "@pod-"
"""Begins the names of supervisors that serve one pod, or one container."""

_WITHIN = {"user": "step", "build": "pod"}  # in a step of Slurm's: not for all, and not for long
_places: "list[Place]" = []
_variables: "dict[bytes, bytes]" = {}


def place() -> Place:
    """Return where this process is; it is asked for once."""
    if not _places:
        found = here()
        if found.step and not found.job and b"_OCI_SYNCPIPE" in posix.environ:
            from scrun.client.engine_place import variables_of_engine

            _variables.update(variables_of_engine())
            found = here(_variables)
        _places.append(found)
    return _places[0]


def withheld() -> "dict[bytes, bytes]":
    """Return Slurm's variables that the engine has, and has not passed on to us."""
    place()
    return _variables


def supervisor_name(group: str, parsed: Parsed) -> str:
    """Return the name of the socket of the supervisor for a new container.

    A supervisor works in its own namespaces and speaks the protocol of its own version, so both
    are part of the name; so is the pod or container that the setting `group` keeps apart, and the
    step, or the task, that it ends with. No container id begins with `@`.
    """
    namespaces = "-".join(
        str(posix.stat(f"/proc/self/ns/{kind}").st_ino) for kind in ("user", "mnt", "pid")
    )
    key = ""
    if group == "container":
        key = parsed.id or ""
    elif group == "pod":
        from scrun.core.pods import pod_of

        key = pod_of(parsed.text("bundle") or ".", parsed.text("config")) or parsed.id or ""
    if within := place().name:
        key = f"{within} {key}"
        group = _WITHIN.get(group, group)
    return f"@{group}{_digest(key)}-{namespaces}-{VERSION}"


def beside(root: str, name: str) -> "list[str]":
    """Return the supervisors that could serve us if they entered our mount namespace.

    Args:
        root: The root directory.
        name: That of a common supervisor in our namespaces.

    Raises:
        OSError: The root directory cannot be read.
    """
    from scrun.core.paths import keepers

    mine = _apart_from_mounts(name)
    # the common ones before those of builds, which end soon
    return [other for other in reversed(keepers(root)) if _apart_from_mounts(other) == mine]


def _apart_from_mounts(name: str) -> "tuple[str, ...]":
    """Return the user and PID namespace of a supervisor without a key, and its version."""
    _, users, _, pids, version = (*name.split("-", 4), "", "", "", "")[:5]
    return users, pids, version.partition("-")[0]


def _digest(key: str) -> str:
    """Shorten a key: a pod's or container's name may be as long as a file name can be."""
    if not key:
        return ""
    from _blake2 import blake2s

    return "-" + blake2s(key.encode(errors="surrogatepass"), digest_size=8).hexdigest()
