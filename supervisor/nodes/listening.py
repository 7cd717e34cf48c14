"""Where nodes can reach us, and the port at which we listen for one of them."""

import ipaddress
import random
import socket
from collections.abc import Mapping

from scrun.core.errors import ScrunError
from scrun.supervisor.core.threads import look
from scrun.supervisor.shim.door import BACKLOG
from scrun.supervisor.shim.frames import FROM_SRUN, LOOPBACK

_NAMES = 2.0


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
