"""The direct connection from a node, for streams: srun carries some 30 MiB/s.

Nodes can connect to the submit host in any case: slurmstepd does, for srun's streams. Both ends
prove that they know a secret, which went over srun (`supervisor.shim`, Connection).
"""

import os
import socket
import time
from _operator import _compare_digest as compare_digest  # hmac brings OpenSSL
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.nodes.listening import listen
from scrun.supervisor.shim.frames import proof

RANDOM = 32
"""Bytes of each of the four parts of the proof."""

MOST_UNPROVED = 16
_TO_PROVE = 5.0
_REMEMBERED = 600.0
_MOST_NODES = 10_000
_IDLE = 300  # seconds, below what firewalls forget


class Unreached:
    """Nodes from which nothing reached us: not every container is to wait for that again."""

    def __init__(self) -> None:
        """Begin with none."""
        self._until: dict[str, float] = {}

    def add(self, node: str) -> None:
        """Remember a node, for some minutes."""
        if len(self._until) >= _MOST_NODES:
            self._until.clear()
        self._until[node] = time.monotonic() + _REMEMBERED

    def __contains__(self, node: str) -> bool:
        return self._until.get(node, 0) > time.monotonic()


class Listener:
    """Waits for connections of who knows the secret.

    Attributes:
        port: Where it listens.
        wrong: How many connections did not know it.
    """

    def __init__(self, ports: str | None, secret: bytes, journal: Journal, most: int = 1) -> None:
        """Create it; `listening` opens it.

        Args:
            ports: See `listen`.
            secret: The secret.
            journal: Where messages go.
            most: How many connections to take.
        """
        self.port = 0
        self.wrong = 0
        self._ports = ports
        self._secret = secret
        self._journal = journal
        self._left = most
        self._found: deque[int] = deque()
        self._arrived = trio.Event()
        self._room = trio.CapacityLimiter(MOST_UNPROVED)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Listener"]:
        """Listen while the block runs.

        Raises:
            NotReached: No port is free.
            OSError: Sockets cannot be made.
        """
        sock = trio.socket.from_stdlib_socket(listen(self._ports))
        self.port = sock.getsockname()[1]
        try:
            async with unwrapped() as nursery:
                nursery.start_soon(self._accept_all, sock, nursery)
                try:
                    yield self
                finally:
                    nursery.cancel_scope.cancel()
        finally:
            sock.close()
            while self._found:
                os.close(self._found.popleft())

    async def connected(self) -> int:
        """Wait for a connection; return its descriptor, which is the caller's."""
        while not self._found:
            self._arrived = trio.Event()
            await self._arrived.wait()
        return self._found.popleft()

    async def _accept_all(self, sock: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        while True:
            await self._room.acquire_on_behalf_of(token := object())
            try:
                other, _ = await sock.accept()
            except OSError:  # out of descriptors, or it went before it was accepted
                self._room.release_on_behalf_of(token)
                await trio.sleep(0.1)
                continue
            except trio.Cancelled:
                self._room.release_on_behalf_of(token)
                raise
            nursery.start_soon(self._take, other, token)

    async def _take(self, sock: trio.socket.SocketType, token: object) -> None:
        try:
            proved = False
            with trio.move_on_after(_TO_PROVE):
                proved = await self._proves(sock)
            if not proved:
                self._refuse()
            elif self._left:
                _tune(sock)
                self._left -= 1
                self._found.append(sock.detach())
                self._arrived.set()
        except OSError:
            pass  # it has gone: the shim tries several addresses at once, and takes the first
        finally:
            self._room.release_on_behalf_of(token)
            sock.close()

    def _refuse(self) -> None:
        self.wrong += 1
        if self.wrong == 1:
            text = f"port {self.port}: somebody who is not the shim has connected"
            self._journal.write("verbose", text)

    async def _proves(self, sock: trio.socket.SocketType) -> bool:
        both = await _receive(sock)
        own = os.urandom(RANDOM)
        both += own
        await _send(sock, own)
        theirs = await _receive(sock)
        if not compare_digest(theirs, proof(self._secret, b"shim", both)):
            return False
        await _send(sock, proof(self._secret, b"supervisor", both))
        return True


async def _receive(sock: trio.socket.SocketType) -> bytes:
    content = b""
    while len(content) < RANDOM:
        part = await sock.recv(RANDOM - len(content))
        if not part:
            raise OSError("it ended")
        content += part
    return content


async def _send(sock: trio.socket.SocketType, content: bytes) -> None:
    while content:
        content = content[await sock.send(content) :]


def _tune(sock: trio.socket.SocketType) -> None:
    """Send small frames at once, and keep firewalls from forgetting an idle connection."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE)
