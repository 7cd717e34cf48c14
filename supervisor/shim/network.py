"""Makes sockets in a container's network namespace.

Also in a program of the supervisor's, for a container on this machine. A socket stays in the
namespace in which it was made, so who has it connects and carries, and whoever made it need not
be asked again. An ordinary user enters a network namespace only by the user namespace that owns
it, and that only a process with one thread may enter: so a child makes them.
"""

import _socket as socket  # without its enums, which take some ms
import errno
import fcntl
import os
import struct
import sys

from .libc import DUMPABLE, join_network, prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
"""Where a server of the container's own network listens, by what is tried first."""

OUTSIDE = ((socket.AF_INET, ""),)
"""In their place: where others reach it. A socket in it knows that (`outside`)."""

INTERFACE = "tap0"
"""The interface by which others reach a network that only containers have."""

SAME = ("net", "pid", "uts")
"""The namespaces that a shim and its supervisor have together if it gives it a line to `serve`.

By the first they find each other, by the second each knows who that is. A node with a host name
of its own is another machine, too."""

_DONE = b"\0"
_ASK_ADDRESSES, _ASKED = 0x8912, struct.Struct("iP")  # SIOCGIFCONF: netdevice(7)
_ADDRESS, _MOST = struct.Struct("16s4x4s16x"), 64
_LOOPBACK = "lo"
_ORDERS = 64


def elsewhere(pids: "Iterable[int]") -> "int | None":
    """Return the first of these processes that has another network than ours; else None.

    A runtime in the foreground has ours, and the container is among its descendants.

    Raises:
        OSError: All of them have ended; or one is another user's, or may not be looked into.
    """
    own, is_there = _namespace(os.getpid(), "net"), False
    for pid in pids:
        try:
            if _namespace(pid, "net") != own:
                return pid
            is_there = True
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESRCH):
                raise
    if not is_there:  # else its ports would be taken for ours
        raise OSError(errno.ESRCH, "it has ended")
    return None


def host(kinds: "Iterable[str]" = ("net",)) -> str:
    """Return what no other machine, and no other such namespaces of this one, are called."""
    own = [_namespace(os.getpid(), kind) for kind in kinds]
    with open("/proc/sys/kernel/random/boot_id") as file:
        return " ".join((file.read().strip(), *own))


def addresses_of(sock: int) -> "dict[str, list[str]]":
    """Return the addresses of the network that a socket is in, of IPv4, by interface."""
    from array import array  # it takes a while, and most shims do without

    room = array("B", bytes(_MOST * _ADDRESS.size))
    place, size = room.buffer_info()
    size, _ = _ASKED.unpack(fcntl.ioctl(sock, _ASK_ADDRESSES, _ASKED.pack(size, place)))
    found: dict[str, list[str]] = {}
    for name, address in _ADDRESS.iter_unpack(room.tobytes()[:size]):
        found.setdefault(name.rstrip(b"\0").decode(), []).append(socket.inet_ntoa(address))
    return found


def outside(sock: int) -> "list[tuple[int, str]]":
    """Return where others reach the network of a socket; its loopbacks if nothing connects it.

    The engine's networks know it by other addresses, which its loopback has (`outbound`).
    """
    found = addresses_of(sock)
    if INTERFACE not in found:
        return list(LOOPBACKS)
    known = (one for one in found.get(_LOOPBACK, ()) if not one.startswith("127."))
    return [(socket.AF_INET, one) for one in (*found[INTERFACE], *known)]


def begin_to_connect(sock: "socket.socket", address: str, port: int) -> bool:
    """Connect a socket that does not block; tell whether it is connected already.

    On its own machine it is by the second call, which asks (connect(2)): nobody need wait then.

    Raises:
        OSError: Nobody accepts it.
    """
    code = sock.connect_ex((address, port))
    if code == errno.EINPROGRESS:
        code = sock.connect_ex((address, port))
    if code not in (0, errno.EINPROGRESS, errno.EALREADY):
        raise OSError(code, os.strerror(code))
    return not code


def end_to_connect(sock: "socket.socket") -> None:
    """Learn how that ended: it can be written to.

    Raises:
        OSError: It is not connected.
    """
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


def serve(pid: int, line: "socket.socket") -> int:
    """Enter the network of a process; make a socket for each byte that arrives, a family.

    The first message says that it is there. Returns when the other end of the line is closed.

    Raises:
        OSError: The kernel refuses.
    """
    prctl(DUMPABLE, 0)  # the container's root may see us, if it has the node's processes
    join_network(pid)
    try:
        _make_sockets(line)
    except ConnectionError:  # nobody has taken the last one
        pass
    return 0


def _make_sockets(line: "socket.socket") -> None:
    line.sendall(_DONE)
    while True:
        orders = line.recv(_ORDERS)
        if not orders:
            return
        for family in orders:
            try:
                made = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:  # no IPv6
                line.sendall(bytes([error.errno or errno.EIO]))
                continue
            rights = made.fileno().to_bytes(4, sys.byteorder)
            line.sendmsg([_DONE], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            made.close()


def serve_descriptor() -> None:
    """Do that for the program: its arguments are the process and the descriptor of the line."""
    sys.exit(serve(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))))


def socket_of(
    said: bytes, ancillary: "list[tuple[int, int, bytes]]", _flags: int, _address: object
) -> int:
    """Return the descriptor of a socket, from what recvmsg(2) of a line has got.

    Raises:
        OSError: There is none.
    """
    if not said:
        raise OSError(errno.ESRCH, "its network cannot be entered")
    if not ancillary:
        raise OSError(said[0], os.strerror(said[0]))
    return int.from_bytes(ancillary[0][2][:4], sys.byteorder)


def _namespace(pid: int, kind: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/{kind}")
