"""The direct connection from a node, for streams: srun carries some 30 MiB/s.

Nodes can connect to the submit host in any case: slurmstepd does, for srun's streams. Both ends
prove that they know a secret, which went over srun (`supervisor.shim`, Connection).
"""

import hmac
import ipaddress
import os
import random
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import trio

from scrun.core.errors import ScrunError
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.threads import look
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.shim.frames import proof

RANDOM = 32
"""Bytes of each of the four parts of the proof."""

MOST_UNPROVED = 16
_TO_PROVE = 5.0
_NAMES = 2.0
_LOOPBACK = "127.0.0.1"
_FROM_SLURM = ("SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST")
_IDLE = 300  # seconds, below what firewalls forget


class NotReached(ScrunError):
    """The node has no connection to us; with the reason."""


async def addresses(environment: Mapping[str, str], port: int) -> list[tuple[str, int]]:
    """Return where the node may find us, the most probable first.

    Args:
        environment: The variables of the step: Slurm says there whence srun came.
        port: Where we listen.
    """
    found = [environment[name] for name in _FROM_SLURM if environment.get(name)]
    try:
        found += await look("the name service", _own_addresses, patience=_NAMES)
    except (ScrunError, OSError):
        pass  # those that Slurm knows are left
    return [(host, port) for host in dict.fromkeys([*found, _LOOPBACK])]


def _own_addresses() -> list[str]:
    """Return the name of this machine and its addresses, as the name service knows them."""
    name = socket.gethostname()
    found = [name]
    for *_, address in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM):
        host = str(address[0])
        own = ipaddress.ip_address(host.partition("%")[0])
        if not own.is_loopback and not own.is_link_local:
            found.append(host)
    return found


def listen(ports: str | None) -> socket.socket:
    """Listen on all addresses of this machine.

    Args:
        ports: The range to choose from, as "60001-63000"; None for any.

    Raises:
        NotReached: No port is free.
        OSError: Sockets cannot be made.
    """
    tries = [0]
    if ports:
        first, _, last = ports.partition("-")
        try:
            tries = list(range(int(first), int(last or first) + 1))
        except ValueError:
            raise NotReached(f"SrunPortRange={ports} is no range") from None
        random.shuffle(tries)
    for port in tries:
        try:
            return _listen_at(port)
        except (OSError, OverflowError):
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
            sock.listen(MOST_UNPROVED)
        except OSError:
            sock.close()
            if family == socket.AF_INET:
                raise
            continue
        return sock
    raise AssertionError("unreachable")


class Listener:
    """Waits for one connection of somebody who knows the secret.

    Attributes:
        port: Where it listens.
        wrong: How many connections did not know it.
    """

    def __init__(self, ports: str | None, secret: bytes, journal: Journal) -> None:
        """Create it; `listening` opens it.

        Args:
            ports: See `listen`.
            secret: The secret.
            journal: Where messages go.
        """
        self.port = 0
        self.wrong = 0
        self._ports = ports
        self._secret = secret
        self._journal = journal
        self._found: int | None = None
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
            if self._found is not None:
                os.close(self._found)

    async def connected(self) -> int:
        """Wait for the connection; return its descriptor, which is the caller's."""
        await self._arrived.wait()
        fd, self._found = self._found, None
        assert fd is not None
        return fd

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
        proved = False
        try:
            with trio.move_on_after(_TO_PROVE):
                proved = await self._proves(sock)
            if proved and not self._arrived.is_set():
                _tune(sock)
                self._found = sock.detach()
                self._arrived.set()
        except OSError:
            pass  # it has gone
        finally:
            self._room.release_on_behalf_of(token)
            sock.close()
        if not proved:
            self.wrong += 1
            if self.wrong == 1:
                self._journal.write(
                    "verbose", f"port {self.port}: somebody who is not the shim connected"
                )

    async def _proves(self, sock: trio.socket.SocketType) -> bool:
        both = await _receive(sock)
        own = os.urandom(RANDOM)
        both += own
        await _send(sock, own)
        theirs = await _receive(sock)
        if not hmac.compare_digest(theirs, proof(self._secret, b"shim", both)):
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
