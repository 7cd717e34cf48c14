"""Makes the direct connection to the supervisor. Blocks, for no stream exists yet."""

import _socket as socket  # without its enums, which take some ms
import errno
import os
import select
import time
from _operator import _compare_digest as compare_digest  # hmac brings OpenSSL

from .frames import proof

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_NONCE = 32
_PROOF = 32
_KEEP_IDLE = 300  # seconds: some firewalls forget a connection without traffic
_SLOW = 1.0  # seconds for one that has begun to prove it
_BUSY = (errno.EINPROGRESS, errno.EWOULDBLOCK, 0)


class NoConnection(OSError):
    """Nobody who knows the secret answered; the reasons."""


def dial(addresses: "Sequence[Sequence[object]]", secret: bytes, patience: float) -> socket.socket:
    """Connect to the first address where somebody proves to know the secret.

    Args:
        addresses: Pairs of host and port; all are tried at once.
        secret: The secret.
        patience: The seconds for everything.

    Returns:
        A non-blocking socket.

    Raises:
        NoConnection: There is none.
    """
    deadline = time.monotonic() + patience
    reasons: list[str] = []
    waiting: dict[int, _Attempt] = {}
    poll = select.poll()
    for host, port in addresses:
        name = f"{host}:{port}"
        try:
            for family, kind, protocol, _, address in socket.getaddrinfo(
                str(host).encode(),
                int(str(port)),
                0,
                socket.SOCK_STREAM,  # bytes need no IDNA
            ):
                sock = socket.socket(family, kind, protocol)
                sock.setblocking(False)
                code = sock.connect_ex(address)
                if code in _BUSY:
                    waiting[sock.fileno()] = _Attempt(sock, name)
                    poll.register(sock, select.POLLOUT)
                else:
                    reasons.append(f"{name}: {os.strerror(code)}")
                    sock.close()
        except (OSError, ValueError) as error:
            reasons.append(f"{name}: {error}")
    found = None
    while waiting and found is None and deadline > time.monotonic():
        for fd, _ in poll.poll(max(0, int((deadline - time.monotonic()) * 1000) + 1)):
            attempt = waiting[fd]
            try:
                if not attempt.ours:
                    attempt.begin()
                    poll.modify(fd, select.POLLIN)  # who accepts and says nothing delays nobody
                    continue
                _prove(attempt, secret, min(deadline, time.monotonic() + _SLOW))
            except OSError as error:
                reasons.append(f"{attempt.name}: {error.strerror or error}")
                attempt.sock.close()
            else:
                found = attempt.sock
            poll.unregister(fd)
            del waiting[fd]
            if found is not None:
                break
    for attempt in waiting.values():
        reasons.append(f"{attempt.name}: no answer")
        attempt.sock.close()
    if found is None:
        raise NoConnection("; ".join(reasons) or "no address")
    found.setblocking(False)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_IDLE)
    return found


class _Attempt:
    """A connection to one address."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        self.sock, self.name = sock, name
        self.ours = b""

    def begin(self) -> None:
        """Send our random bytes: it is connected.

        Raises:
            OSError: It is not.
        """
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        self.ours = os.urandom(_NONCE)
        self.sock.sendall(self.ours)


def _prove(attempt: _Attempt, secret: bytes, deadline: float) -> None:
    sock = attempt.sock
    both = attempt.ours + _exactly(sock, _NONCE, deadline)
    sock.sendall(proof(secret, b"shim", both))
    if not compare_digest(_exactly(sock, _PROOF, deadline), proof(secret, b"supervisor", both)):
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
