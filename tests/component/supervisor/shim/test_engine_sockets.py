"""Sockets of the engine's that a container mounts, which the shim stands in for."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.component.supervisor.shim.conftest import MakeShim
from tests.component.supervisor.shim.test_beginning import resume
from tests.harness import users
from tests.harness.bundle import make_config, map_user
from tests.harness.shim import PURE_V2, Shim

PLACE = "/tmp/docker.sock"
CLIENT = """
import socket
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect("/tmp/docker.sock")
    sock.sendall(b"question")
    sock.shutdown(socket.SHUT_WR)
    print(b"".join(iter(lambda: sock.recv(64), b"")).decode(), flush=True)
"""


def begin(shim: Shim, script: str, streams: dict[str, int]) -> None:
    """Run a script of Python's in a container that mounts a socket."""
    mounts: list[dict[str, Any]] = [
        {"destination": path, "source": path, "type": "bind", "options": ["rbind", "ro"]}
        for path in ("/usr", "/lib", "/lib64")
    ]
    mounts.append({"destination": "/tmp", "source": "tmpfs", "type": "tmpfs"})
    mounts.append(
        {"destination": PLACE, "source": "/nowhere", "type": "bind", "options": ["bind"]}
    )
    config = {"mounts": [*make_config(())["mounts"], *mounts], "linux": {"namespaces": []}}
    if shim.user.uid:
        map_user(config, shim.user)
    words = ("/usr/bin/python3", "-c", script)
    shim.run("a", *words, sockets=[PLACE], mounts=config["mounts"], streams=streams)


def accepted(shim: Shim) -> dict[str, Any]:
    return shim.call("accept", container="a", sockets=True)


def answer(shim: Shim, arrived: dict[str, Any]) -> None:
    """Be the engine: hear all of a question, and answer it."""
    assert arrived["path"] == PLACE
    stream = shim.streams("stdin")["stdin"]
    number = arrived["number"]
    attached = {"container": "a", "number": number, "stream": stream, "sockets": True}
    assert shim.call("attach", **attached) == {}
    assert shim.finish(stream) == b"question"
    shim.write(stream, b"answer")
    shim.write(stream, b"")


@pytest.mark.parametrize("who", ["root", "user"])
def test_a_connection_is_carried(who: str, make_shim: MakeShim) -> None:
    """In both directions, each until its end."""
    user = users.root() if who == "root" else users.ordinary()
    shim = make_shim(user=user, place=PURE_V2)
    streams = shim.streams("stdout", "stderr")
    begin(shim, CLIENT, streams)
    answer(shim, accepted(shim))
    assert shim.ended("a") == 0, shim.output
    assert shim.output[streams["stdout"]] == b"answer\n"


def test_a_connection_that_nobody_wants(make_shim: MakeShim) -> None:
    shim = make_shim()
    streams = shim.streams("stdout")
    begin(shim, CLIENT, streams)
    arrived = accepted(shim)
    refused = {"container": "a", "number": arrived["number"], "sockets": True}
    assert shim.call("refuse", **refused) == {}
    assert shim.ended("a") == 1
    assert shim.output[streams["stdout"]] == b""


def test_another_supervisor_gets_connections(direct: Shim) -> None:
    streams = direct.streams("stdout")
    begin(direct, CLIENT, streams)
    first = accepted(direct)
    direct.die()
    time.sleep(0.5)
    resume(direct, ["a"], {})
    assert accepted(direct) == first
    answer(direct, first)
    assert direct.ended("a") == 0


def test_one_without_sockets(make_shim: MakeShim) -> None:
    shim = make_shim()
    shim.run("a", "sleep", "1000")
    assert shim.call("accept", container="a", sockets=True) == {
        "error": "a has no sockets of an engine's"
    }


def test_they_go_with_it(make_shim: MakeShim) -> None:
    shim = make_shim()
    begin(shim, "import time; time.sleep(1000)", {})
    before = descriptors(shim)
    assert shim.call("delete", id="a") == {}
    assert descriptors(shim) < before


def descriptors(shim: Shim) -> int:
    """How many sockets a shim has."""
    folder = Path(f"/proc/{shim.process.pid}/fd")
    return sum(str(fd.readlink()).startswith("socket:") for fd in folder.iterdir())
