"""Makes the direct connection to the supervisor. Blocks, for no stream exists yet."""

import _socket as socket  # without its enums, which take some ms
import errno
import os
import select
import time
from _operator import _compare_digest as compare_digest  # hmac brings OpenSSL

from scrun.supervisor.wire.frames import RANDOM, knock, proof

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_KEEP_IDLE = 300  # seconds: some firewalls forget a connection without traffic
_SLOW = 1.0  # seconds for one that has begun to prove it
_AGAIN = 0.1  # seconds until the next try of an address that turned us away
_TURNED_AWAY = (errno.ECONNRESET, errno.EPIPE, None)  # None: it says nothing more
_BUSY = (errno.EINPROGRESS, errno.EWOULDBLOCK, 0)


class NoConnection(OSError):
    """Nobody who knows the secret answered; the reasons.

    Attributes:
        reached: Whether somebody accepted a connection: no firewall is in the way.
    """

    def __init__(self, reasons: str, reached: bool) -> None:
        super().__init__(reasons)
        self.reached = reached


def dial(
    addresses: "Sequence[Sequence[object]]", secret: bytes, patience: float
) -> "tuple[socket.socket, bytes]":
    """Connect to the first address where somebody proves to know the secret.

    Args:
        addresses: Pairs of host and port; all are tried at once.
        patience: The seconds for everything.

    Returns:
        A non-blocking socket, and the random bytes of both ends.

    Raises:
        NoConnection: Nobody who knows the secret answered.
    """
    deadline = time.monotonic() + patience
    reasons: dict[str, str] = {}  # the first one of each
    waiting: dict[int, _Attempt] = {}
    again: list[tuple[float, Any]] = []
    for host, port in addresses:
        name = f"{host}:{port}"
        try:
            # bytes need no IDNA
            places = socket.getaddrinfo(str(host).encode(), int(str(port)), 0, socket.SOCK_STREAM)
            again += [(0.0, (name, place)) for place in places]
        except (OSError, ValueError) as error:
            reasons[name] = str(error)
    found, reached = None, False
    poll = select.poll()
    while (waiting or again) and found is None:
        now = time.monotonic()
        if now >= deadline:
            break
        while again and again[0][0] <= now:
            name, place = again.pop(0)[1]
            try:
                attempt = _Attempt(name, place)
            except OSError as error:
                reasons.setdefault(name, error.strerror or str(error))
            else:
                waiting[attempt.sock.fileno()] = attempt
                poll.register(attempt.sock, select.POLLOUT)
        until = min([deadline, *(when for when, _ in again)])
        for fd, _ in poll.poll(max(0, int((until - now) * 1000) + 1)):
            attempt = waiting[fd]
            try:
                if not attempt.ours:
                    attempt.knock(secret)
                    reached = True
                    poll.modify(fd, select.POLLIN)  # who accepts and says nothing delays nobody
                    continue
                _prove(attempt, secret, min(deadline, time.monotonic() + _SLOW))
            except OSError as error:
                reasons.setdefault(attempt.name, error.strerror or str(error))
                attempt.sock.close()
                if attempt.ours and error.errno in _TURNED_AWAY:  # there may be a crowd
                    again.append((time.monotonic() + _AGAIN, (attempt.name, attempt.place)))
            else:
                found = attempt
            poll.unregister(fd)
            del waiting[fd]
            if found is not None:
                break
    for attempt in waiting.values():
        reasons.setdefault(attempt.name, "no answer")
        attempt.sock.close()
    if found is None:
        raise NoConnection("; ".join(map(": ".join, reasons.items())) or "no address", reached)
    sock = found.sock
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_IDLE)
    return sock, found.both


class _Attempt:
    """A connection to one address.

    Attributes:
        ours: What we have said first.
        both: That, and what the other end has.
    """

    def __init__(self, name: str, place: "tuple[Any, ...]") -> None:
        """Begin to connect to an address of getaddrinfo(3); raise OSError if it is impossible."""
        self.name, self.place = name, place
        self.ours = self.both = b""
        self.sock = socket.socket(*place[:3])
        self.sock.setblocking(False)
        code = self.sock.connect_ex(place[4])
        if code not in _BUSY:
            self.sock.close()
            raise OSError(code, os.strerror(code))

    def knock(self, secret: bytes) -> None:
        """Say that we know the secret: it is connected.

        Raises:
            OSError: It is not.
        """
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        self.ours = knock(secret, os.urandom(RANDOM // 2))
        self.sock.sendall(self.ours)


def _prove(attempt: _Attempt, secret: bytes, deadline: float) -> None:
    sock = attempt.sock
    both = attempt.both = attempt.ours + _exactly(sock, RANDOM, deadline)
    sock.sendall(proof(secret, b"shim", both))
    if not compare_digest(_exactly(sock, RANDOM, deadline), proof(secret, b"supervisor", both)):
        raise OSError(errno.EACCES, "the other end does not know the secret")


def _exactly(sock: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        piece = sock.recv(size - len(data))
        if not piece:
            raise OSError(errno.ECONNRESET, "closed before it proved to know the secret")
        data += piece
    return data
