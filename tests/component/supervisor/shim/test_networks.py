"""A container's own network on its node, and what it reaches of its engine's."""

import os
import resource
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.component.supervisor.shim.conftest import MakeShim
from tests.component.supervisor.shim.test_beginning import resume
from tests.component.supervisor.shim.test_containers import of_a_pod
from tests.harness.shim import Shim

_TUN = Path("/dev/net/tun")
NETWORK, ADDRESS = "10.89.7.0/24", "10.89.7.9"


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


def begin(shim: Shim, script: str, **options: Any) -> dict[str, Any]:
    """Run a script in a container with a network of its own; return the reply to its creation."""
    linux = of_a_pod(shim, "pid")
    reply = shim.create(
        "a", "sh", "-c", script, networks=[NETWORK], linux=linux, hostname="", **options
    )
    assert "error" not in reply, reply
    assert not reply["why"], reply
    assert shim.call("start", id="a") == {}
    return reply


def accepted(shim: Shim) -> dict[str, Any]:
    return shim.call("accept", container="a")


def attached(shim: Shim, number: int) -> int:
    stream = shim.streams("stdin")["stdin"]
    assert shim.call("attach", container="a", number=number, stream=stream) == {}
    return stream


CONNECT = f"nc {ADDRESS} 80 < /dev/null"


def test_another_supervisor_gets_connections(direct: Shim) -> None:
    """One that nobody carries yet, and one that arrives while there is no supervisor."""
    begin(direct, f"{CONNECT} & sleep 1; {CONNECT} & wait")
    first = accepted(direct)
    assert first["addresses"] == [[ADDRESS, 80]]
    direct.ask("accept", container="a")  # it waits for the next
    direct.die()
    time.sleep(2)
    resume(direct, ["a"], {})
    assert accepted(direct) == first
    second = accepted(direct)
    for arrived in (first, second):
        stream = attached(direct, arrived["number"])
        direct.write(stream, b"")
    assert direct.ended("a") == 0


@pytest.mark.parametrize(("descriptors", "count"), [(60, 100), (1024, 300)])
def test_more_connections_than_room(descriptors: int, count: int, make_shim: MakeShim) -> None:
    """They wait, and are not reset; the shim does not turn round and round meanwhile."""
    shim = make_shim()
    begin(shim, f"for i in $(seq {count}); do {CONNECT} & done; wait; echo all > /dev/null")
    resource.prlimit(shim.process.pid, resource.RLIMIT_NOFILE, (descriptors, 1024))
    time.sleep(2)
    before = processor_time(shim)
    time.sleep(2)
    assert processor_time(shim) - before < 0.5
    for _ in range(count):
        shim.call("refuse", container="a", number=accepted(shim)["number"])
    assert shim.ended("a") == 0


def processor_time(shim: Shim) -> float:
    """Seconds that a shim has used."""
    *_, user, system = Path(f"/proc/{shim.process.pid}/stat").read_text().split()[:15]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
