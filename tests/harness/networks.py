"""What tests of networks need: a device that users may open, and containers that ask others."""

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.client import Client

_TUN = Path("/dev/net/tun")


@pytest.fixture(scope="module", autouse=True)
def tun() -> Iterator[None]:
    """Every user may open /dev/net/tun, as with udev's rules."""
    if not _TUN.exists():
        _TUN.parent.mkdir(exist_ok=True)
        os.mknod(_TUN, 0o600 | stat.S_IFCHR, os.makedev(10, 200))
    before = stat.S_IMODE(_TUN.stat().st_mode)
    _TUN.chmod(0o666)
    yield
    _TUN.chmod(before)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def address_of(engine: Client, who: str, name: str) -> str:
    """The address of a container's that another one in its network is told."""
    said = engine.must("exec", who, "nslookup", name)
    *_, address = [line.split()[1] for line in said.splitlines() if line.startswith("Address:")]
    return address


def fetched(engine: Client, who: str, address: str) -> str:
    """What a container gets from a server."""
    ask = f"printf 'GET /group HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {address} 80 | tail -n 1"
    return engine.run("exec", who, "sh", "-c", ask).stdout
