"""What tests of networks need: a device that users may open, and containers that ask others."""

import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.harness.client import Client
from tests.harness.wait import wait_until, wait_while

_TUN = Path("/dev/net/tun")
_USERS = Path("/run/lock/scrun-tests.tun")
"""Other runs have the same device: who is alone with it knows what it was like before."""


@pytest.fixture(scope="module", autouse=True)
def tun() -> Iterator[None]:
    """Every user may open /dev/net/tun, as with udev's rules, until the last run is over."""
    if not _TUN.exists():
        _TUN.parent.mkdir(exist_ok=True)
        os.mknod(_TUN, 0o600 | stat.S_IFCHR, os.makedev(10, 200))
    with _USERS.open("a+") as users:
        if _is_alone(users):
            users.truncate(0)
            users.write(str(stat.S_IMODE(_TUN.stat().st_mode)))
            users.flush()
        fcntl.flock(users, fcntl.LOCK_SH)
        _TUN.chmod(0o666)
        yield
        if _is_alone(users):
            users.seek(0)
            _TUN.chmod(int(users.read()))


def _is_alone(users: IO[str]) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def gets_to(engine: Client, who: str, other: str) -> None:
    """Check that a container gets to know another one, and reaches its server of /etc/group."""
    said = engine.must("exec", who, "nslookup", other)
    *_, address = [line.split()[1] for line in said.splitlines() if line.startswith("Address:")]
    ask = f"printf 'GET /group HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {address} 80 | tail -n 1"
    wait_until(
        "an answer",
        lambda: engine.run("exec", who, "sh", "-c", ask).stdout == "root:x:0:\n",
    )


def reach_each_other(engine: Client, who: str, other: str, network: str) -> None:
    """Check that a container gets to know another one in a network, as long as it is there.

    Both have a server. Bridges of root's are on the nodes, too, as these are this machine: so only
    the name goes for certain.
    """

    def is_found() -> bool:
        return not engine.run("exec", who, "nslookup", other).returncode

    assert not is_found()
    engine.must("network", "connect", network, who)
    wait_until("a name", is_found)
    gets_to(engine, who, other)
    gets_to(engine, other, who)
    engine.must("network", "disconnect", network, who)
    wait_while("its name", is_found)


@contextlib.contextmanager
def full_server() -> Iterator[tuple[socket.socket, int]]:
    """A server whose queue has no room, and its port: who connects waits, and tries again."""
    server = socket.create_server(("127.0.0.1", 0), backlog=0)
    with server, socket.create_connection(server.getsockname()):
        yield server, server.getsockname()[1]


def answered(server: socket.socket) -> bytes:
    """Accept who is in the queue of a `full_server`, and what the next client sends first."""
    server.settimeout(20)
    server.accept()[0].close()
    with server.accept()[0] as client:
        client.settimeout(20)
        return client.recv(100)
