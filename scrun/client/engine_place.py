"""What Slurm's variables are for the engine that has conmon call us.

podman passes conmon hardly any variables, and conmon is nobody's child any more, so nothing above
us has those of the task. But podman waits at the other end of the socket that _OCI_SYNCPIPE names.
"""

import _socket
import posix
from struct import pack, unpack_from

from scrun.core.place import OF_TASK, contents

_GENERATIONS = 4  # perhaps scripts around the runtime
# sock_diag(7)
_SOCK_DIAG, _BY_FAMILY, _REQUEST, _UNIX = 4, 20, 1, 1
_ALL_STATES, _SHOW_PEER, _PEER = 0xFFFFFFFF, 4, 2


def variables_of_engine() -> "dict[bytes, bytes]":
    """Return Slurm's variables of the process that waits for our conmon; none if none is seen."""
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
        return any(posix.readlink(f"/proc/{pid}/fd/{fd}") == end for fd in _files(pid))
    except OSError:
        return False


def _files(pid: str) -> "list[str]":
    return posix.listdir(f"/proc/{pid}/fd")


def _environment(pid: str) -> "dict[bytes, bytes]":
    found = {}
    for entry in contents(f"/proc/{pid}/environ").split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name.startswith(OF_TASK):
            found[name] = value
    return found


def _peer(inode: int) -> int:
    """Return the other end of a socket of the kernel's.

    Raises:
        OSError: The kernel does not tell.
    """
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
