"""A network of an engine's beside each container, and somebody in there who asks its server.

A namespace that is bound to a file stands for what an engine makes: whoever connects to any port
in there reaches the container, which has a network of its own on its node.
"""

import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from scrun.core import namespaces as ns
from scrun.supervisor.containers.engine_network import somebody_listens
from tests.stress.chaos.forwards import Asking, port_of

if TYPE_CHECKING:
    from tests.stress.chaos.children import Call

T = TypeVar("T")

_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1  # netdevice(7)
_REQUEST = struct.Struct("16sh14x")
_SETTLES = 10.0


def made(path: Path, config: dict[str, Any]) -> None:
    """Make a network at a path, which only root may, and have a container enter it."""
    path.touch()

    def make() -> None:
        ns.unshare(ns.NEW_NETWORK)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            asked = fcntl.ioctl(sock, _GET_FLAGS, _REQUEST.pack(b"lo", 0))
            name, flags = _REQUEST.unpack(asked)
            fcntl.ioctl(sock, _SET_FLAGS, _REQUEST.pack(name, flags | _UP))
        ns.mount("/proc/thread-self/ns/net", str(path), None, ns.BIND)

    _in_a_thread(make)
    [network] = [one for one in config["linux"]["namespaces"] if one["type"] == "network"]
    network["path"] = str(path)


async def forgotten(path: Path) -> list[str]:
    """Remove the network of a container that has been deleted; return what stayed in there."""
    left = True
    with trio.move_on_after(_SETTLES):
        while left := _within(path, somebody_listens):
            await trio.sleep(0.1)
    ns.detach(str(path))
    path.unlink()
    return ["sockets that listen in its network"] if left else []


def _within(path: Path, call: Callable[[], T]) -> T:
    def enter() -> T:
        fd = os.open(path, os.O_RDONLY)
        try:
            ns.enter(fd, ns.NEW_NETWORK)
        finally:
            os.close(fd)
        return call()

    return _in_a_thread(enter)


def _in_a_thread(call: Callable[[], T]) -> T:
    """Call in a thread that ends: what it has entered nobody else is to have."""
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


class Neighbour(Asking):
    """Somebody in a container's network."""

    async def _forward(self) -> tuple["Call | None", int]:
        return None, port_of(self._container.plan)

    async def _connected(self, port: int) -> trio.SocketStream:
        path = self._container.testbed.network(self._container.plan)
        sock = trio.socket.from_stdlib_socket(_within(path, socket.socket))
        try:
            await sock.connect(("127.0.0.1", port))
        except BaseException:
            sock.close()
            raise
        return trio.SocketStream(sock)
