"""The name of the supervisor that serves a container."""

import _socket
import posix

from scrun.cli.parse import Parsed
from scrun.core.paths import keepers
from scrun.core.place import OF_TASK, Place, contents, here
from scrun.core.version import VERSION

OWN = "@pod-"
"""Begins the names of supervisors that serve one pod, or one container."""

_WITHIN = {"user": "step", "build": "pod"}  # in a step of Slurm's: not for all, and not for long
_GENERATIONS = 4  # perhaps scripts around the runtime
# sock_diag(7)
_SOCK_DIAG, _BY_FAMILY, _REQUEST, _UNIX = 4, 20, 1, 1
_ALL_STATES, _SHOW_PEER, _PEER = 0xFFFFFFFF, 4, 2
_places: "list[Place]" = []
_variables: "dict[bytes, bytes]" = {}


def place() -> Place:
    """Return where this process is; it is asked for once."""
    if not _places:
        found = here()
        if found.step and not found.job and b"_OCI_SYNCPIPE" in posix.environ:
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

    `name` is that of a common supervisor in our namespaces.
    """
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


def variables_of_engine() -> "dict[bytes, bytes]":
    """Return Slurm's variables of the process that waits for our conmon; none if none is seen.

    podman passes conmon hardly any variables, and conmon is nobody's child any more, so nothing
    above us has those of the task. But podman waits at the other end of the socket that
    _OCI_SYNCPIPE names.
    """
    fd = posix.environ.get(b"_OCI_SYNCPIPE", b"").decode(errors="replace")
    try:
        end = posix.readlink(f"/proc/{_conmon()}/fd/{fd}")
        if end.startswith("socket:["):
            end = f"socket:[{_peer(int(end[8:-1]))}]"
    except (OSError, ValueError):
        return {}
    for pid in posix.listdir("/proc"):
        if pid.isdigit() and _has(pid, end):
            found = _environment(pid)
            if b"SLURM_JOB_ID" in found:
                return found
    return {}


def _conmon() -> int:
    pid = posix.getppid()
    for _ in range(_GENERATIONS):
        head, _, rest = contents(f"/proc/{pid}/stat").rpartition(b")")
        if head.partition(b"(")[2] == b"conmon":
            break
        pid = int((rest.split(None, 2) + [b""] * 2)[1])
    return pid


def _has(pid: str, end: str) -> bool:
    """Tell whether a process has a file; others than those of the user cannot be seen."""
    try:
        files = posix.listdir(f"/proc/{pid}/fd")
        return any(posix.readlink(f"/proc/{pid}/fd/{fd}") == end for fd in files)
    except OSError:
        return False


def _environment(pid: str) -> "dict[bytes, bytes]":
    found = {}
    for entry in contents(f"/proc/{pid}/environ").split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name.startswith(OF_TASK):
            found[name] = value
    return found


def _peer(inode: int) -> int:
    """Return the other end of a socket of the kernel's."""
    from struct import pack, unpack_from

    wanted = pack("=BBHIII8s", _UNIX, 0, 0, _ALL_STATES, inode, _SHOW_PEER, b"\xff" * 8)
    sock = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_DGRAM, _SOCK_DIAG)
    try:
        sock.settimeout(1)
        sock.send(pack("=IHHII", 16 + len(wanted), _BY_FAMILY, _REQUEST, 0, 0) + wanted)
        answer = sock.recv(4096)
    finally:
        sock.close()
    at = 16 + 16  # behind the header and what it says of the socket come attributes
    while at + 4 <= len(answer):
        size, kind = unpack_from("=HH", answer, at)
        if kind == _PEER and at + 8 <= len(answer):
            [peer] = unpack_from("=I", answer, at + 4)
            return int(peer)
        at += max(size + 3 & ~3, 4)
    raise OSError(f"socket {inode} has no other end")
