"""The direct connection from a node, for streams: srun carries some 30 MiB/s.

Nodes can connect to the submit host in any case: slurmstepd does, for srun's streams. Both ends
prove that they know a secret, which went over srun (`supervisor.shim`, Connection).
"""

import os
import socket
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio

from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.nodes.listening import listen
from scrun.supervisor.shim.door import Door

_SAID_AGAIN = 60.0  # seconds between lines about strangers
_REMEMBERED = 600.0
_MOST_NODES = 10_000
_IDLE = 300  # seconds, below what firewalls forget


class Unreached:
    """Nodes from which nothing reached us: not every container is to wait for that again."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, node: str) -> None:
        """Remember a node, for some minutes."""
        if len(self._until) >= _MOST_NODES:
            self._until.clear()
        self._until[node] = time.monotonic() + _REMEMBERED

    def __contains__(self, node: str) -> bool:
        return self._until.get(node, 0) > time.monotonic()


class Proved(NamedTuple):
    """A connection of who knows the secret.

    Attributes:
        both: The random bytes of the shim, then ours.
    """

    fd: int
    secret: bytes
    both: bytes


class Listener:
    """Waits for connections of who knows the secret.

    Attributes:
        strangers: How many connections did not know it, or have not shown it when it closed.
    """

    def __init__(
        self,
        ports: str | None,
        secret: bytes,
        journal: Journal,
        most: int = 1,
        *,
        knocks: bool = True,
    ) -> None:
        """Create it; `listening` opens it."""
        self._knocks = knocks
        self.port = 0
        self.strangers = 0
        self._ports = ports
        self._secret = secret
        self._journal = journal
        self._left = most
        self._found: deque[Proved] = deque()
        self._arrived = trio.Event()
        self._said = 0
        self._say_from = 0.0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Listener"]:
        """Listen while the block runs.

        Raises:
            NotReached: No port is free.
            OSError: Sockets cannot be made.
        """
        with listen(self._ports) as sock:
            sock.setblocking(False)
            self.port = sock.getsockname()[1]
            door = Door(sock, self._secret, self._left, knocks=self._knocks)
            try:
                async with unwrapped() as nursery:
                    nursery.start_soon(self._let_in, door)
                    try:
                        yield self
                    finally:
                        nursery.cancel_scope.cancel()
            finally:
                self._say(door)
                self.strangers = door.strangers + door.unknown()
                trio.lowlevel.notify_closing(door.fileno())
                door.close()
                while self._found:
                    os.close(self._found.popleft().fd)

    async def connected(self) -> Proved:
        """Wait for a connection; return it with its descriptor, which is the caller's."""
        while not self._found:
            self._arrived = trio.Event()
            await self._arrived.wait()
        return self._found.popleft()

    async def _let_in(self, door: Door) -> None:
        while True:
            with trio.move_on_after(door.patience()):
                await trio.lowlevel.wait_readable(door.fileno())
            for fd, both in door.turn():
                if not self._left:
                    os.close(fd)
                    continue
                _tune(fd)
                self._left -= 1
                self._found.append(Proved(fd, self._secret, both))
                self._arrived.set()
            self.strangers = door.strangers
            if trio.current_time() >= self._say_from:
                self._say(door)

    def _say(self, door: Door) -> None:
        """Log who has connected that is not the shim: the first at once, others now and then."""
        if door.strangers > self._said:
            self._said = door.strangers
            self._say_from = trio.current_time() + _SAID_AGAIN
            text = f"port {self.port}: connections that are not the shim's: {door.who()}"
            self._journal.write("info", text)


def _tune(fd: int) -> None:
    """Send small frames at once, and keep firewalls from forgetting an idle connection."""
    with socket.socket(fileno=os.dup(fd)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE)
