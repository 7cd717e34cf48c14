"""The direct connection from a node, for streams: srun carries some 30 MiB/s.

Nodes can connect to the submit host in any case: slurmstepd does, for srun's streams. Both ends
prove that they know a secret, which went over srun (`supervisor.shim`, Connection).
"""

import ipaddress
import os
import random
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio

from scrun.core.errors import ScrunError
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.threads import look
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.shim.door import BACKLOG, Door
from scrun.supervisor.wire.frames import FROM_SRUN, LOOPBACK

_SAID_AGAIN = 60.0  # seconds between lines about strangers
_REMEMBERED = 600.0
_MOST_NODES = 10_000
_IDLE = 300  # seconds, below what firewalls forget
_NAMES = 2.0  # seconds for the name service


class NotReached(ScrunError):
    """The node has no connection to us; with the reason."""


async def addresses(environment: Mapping[str, str], port: int) -> list[tuple[str, int]]:
    """Return where the node may find us.

    Slurm says in the step's variables where srun runs, and slurmstepd connects there. Names are
    the last resort: a name service that hangs would hold up the shim.
    """
    found = [environment[name] for name in FROM_SRUN if environment.get(name)]
    if not found:
        found = [socket.gethostname()]
        try:
            found += await look("the name service", _own_addresses, patience=_NAMES)
        except (ScrunError, OSError):
            pass
    return [(host, port) for host in dict.fromkeys([*found, LOOPBACK])]


def _own_addresses() -> list[str]:
    """Return the addresses of this machine, as the name service knows them."""
    found = []
    for *_, address in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
        host = str(address[0])
        own = ipaddress.ip_address(host.partition("%")[0])
        if not own.is_loopback and not own.is_link_local:
            found.append(host)
    return found


def listen(ports: str | None) -> socket.socket:
    """Listen on all addresses of this machine.

    `ports` is the range to choose from, as "60001-63000"; None for any. Raises NotReached if no
    port is free, and OSError if sockets cannot be made.
    """
    tries = [0]
    if ports:
        first, _, last = ports.partition("-")
        try:
            tries = list(range(int(first), int(last or first) + 1))
        except ValueError:
            tries = []
        if not tries or not 0 < tries[0] <= tries[-1] < 1 << 16:
            raise NotReached(f"SrunPortRange={ports} is not a range of ports")
        random.shuffle(tries)
    for port in tries:
        try:
            return _listen_at(port)
        except OSError:
            continue
    raise NotReached(f"no port is free in {ports}" if ports else "no port is free")


def _listen_at(port: int) -> socket.socket:
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            if family == socket.AF_INET:
                raise
            continue  # this machine has no IPv6
        try:
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            if family == socket.AF_INET:
                raise
            continue
        return sock
    raise AssertionError("unreachable")


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
    """A connection of who knows the secret; `both` has the random bytes of the shim, then ours."""

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

        Raises NotReached if no port is free, and OSError if sockets cannot be made.
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
