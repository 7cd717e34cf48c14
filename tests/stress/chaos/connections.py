"""Breaks the direct connection of a container's shim, or has nothing arrive on it for a while."""

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from tests.stress.chaos.container import Container

SERVERS = range(61000, 65500)
"""Ports of containers' servers, above those that the kernel gives. A connection of a shim to one
is not its own."""

_PIDFD_GETFD = 438
_ATTACH_FILTER, _DETACH_FILTER = 26, 27  # socket(7), SO_ATTACH_FILTER
_DROP_ALL = struct.pack("HBBI", 6, 0, 0, 0)  # a program of one instruction: accept 0 bytes
_C = ctypes.CDLL(None, use_errno=True)


async def reset(container: "Container", shim: int) -> None:
    """Have both ends of the connection learn that it was reset."""
    with _connections_of(shim) as found:
        for sock in found:
            unspecified = struct.pack("H14x", socket.AF_UNSPEC)
            if _C.connect(sock.fileno(), unspecified, len(unspecified)) == 0:
                container.hit(f"the connection of shim {shim} was reset")


async def blackhole(container: "Container", shim: int) -> None:
    """Have both ends receive nothing for a while."""
    supervisor = container.where.find("supervisor")
    with ExitStack() as stack:
        found = stack.enter_context(_connections_of(shim))
        theirs = {sock.getpeername()[1]: sock.getsockname()[1] for sock in found}
        if supervisor and found:
            for sock in stack.enter_context(_connections_of(supervisor)):
                if theirs.get(sock.getsockname()[1]) == sock.getpeername()[1]:
                    found.append(sock)
        for sock in found:
            _drop(sock)
        if found:
            container.hit(f"{len(found)} ends receive nothing")
            try:
                await trio.sleep(container.plan.pause)
            finally:
                for sock in found:
                    sock.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
                container.note("they receive again")


def has_connection(pid: int) -> int:
    """Return the pid of a process if it has a TCP connection, else 0."""
    with _connections_of(pid) as found:
        return pid if found else 0


def _drop(sock: socket.socket) -> None:
    code = ctypes.create_string_buffer(_DROP_ALL)
    program = struct.pack("HP", 1, ctypes.addressof(code))
    sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)


@contextmanager
def _connections_of(pid: int) -> Iterator[list[socket.socket]]:
    """Hold the TCP connections of another process."""
    with ExitStack() as stack:
        yield [stack.enter_context(sock) for sock in _taken(pid)]


def _taken(pid: int) -> Iterator[socket.socket]:
    try:
        pidfd = os.pidfd_open(pid)
    except (ProcessLookupError, ValueError):
        return
    seen = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                link = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            taken = _C.syscall(_PIDFD_GETFD, pidfd, int(name), 0) if link[:7] == "socket:" else -1
            if taken < 0:
                continue
            sock = socket.socket(fileno=taken)
            ends = _ends(sock)
            if ends is None or ends in seen:  # a forwarded one has several descriptors
                sock.close()
                continue
            seen.add(ends)
            yield sock
    except FileNotFoundError:
        return  # it has ended
    finally:
        os.close(pidfd)


def _ends(sock: socket.socket) -> tuple[str, str] | None:
    """Return the addresses of a TCP connection that a fault may break, else None."""
    try:
        peer = sock.getpeername()
    except OSError:
        return None
    ip = sock.family in (socket.AF_INET, socket.AF_INET6)
    return (str(sock.getsockname()), str(peer)) if ip and peer[1] not in SERVERS else None
