"""Clients of a supervisor that do not behave."""

import os
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from scrun.protocol import wire

if TYPE_CHECKING:
    from tests.stress.chaos.container import Container

_PATIENCE = 20.0
_STRANGER = """
import socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(20)
try:
    sock.connect(sys.argv[1])
    sock.sendall(bytes.fromhex(sys.argv[2]))
    sys.stdout.write(sock.recv(65536).hex())
except (ConnectionError, FileNotFoundError):  # it hangs up, or is gone
    pass
"""


async def misuse(container: "Container") -> None:
    """Do what the fault's name says to the supervisor's socket of a container."""
    name = container.plan.fault.name.removeprefix("bad-client-")
    path = f"{container.testbed.root_of(container.plan)}/{container.id}/supervisor"
    frame = wire.frame([b"state", container.id.encode()])
    try:
        await _BAD_CLIENTS[name](container, path, frame)
    except OSError as error:
        container.note(f"the supervisor hung up: {error}")
    container.hit(f"a client that does not behave: {name}")


async def _connect(path: str) -> trio.SocketStream:
    return await trio.open_unix_socket(path)


async def _garbage(container: "Container", path: str, frame: bytes) -> None:
    async with await _connect(path) as stream:
        await stream.send_all(os.urandom(3000))
        await stream.send_eof()
        with trio.move_on_after(_PATIENCE):
            await stream.receive_some()


async def _half(container: "Container", path: str, frame: bytes) -> None:
    async with await _connect(path) as stream:
        await stream.send_all(frame[:-3])
        await trio.sleep(container.plan.pause)


async def _slow(container: "Container", path: str, frame: bytes) -> None:
    async with await _connect(path) as stream:
        for byte in frame:
            await stream.send_all(bytes([byte]))
            await trio.sleep(0.02)
        answer = await _answer(stream)
        _check(container, answer[:1] in (b"\0", b"\1"), f"asked slowly, it answers {answer!r}")


async def _twice(container: "Container", path: str, frame: bytes) -> None:
    async with await _connect(path) as stream:
        await stream.send_all(frame * 2)
        answer = await _answer(stream)
        _check(
            container, answer.count(b'"ociVersion"') <= 1, f"asked twice, it answers {answer!r}"
        )


async def _gone(container: "Container", path: str, frame: bytes) -> None:
    for _ in range(5):
        async with await _connect(path) as stream:
            await stream.send_all(frame)
            linger = struct.pack("ii", 1, 0)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


async def _many(container: "Container", path: str, frame: bytes) -> None:
    streams = [await _connect(path) for _ in range(60)]
    for stream in streams:
        await stream.send_all(frame[:7])
    await trio.sleep(0.1)
    for stream in streams:
        await stream.aclose()


async def _stranger(container: "Container", path: str, frame: bytes) -> None:
    """Ask as another user, to whom no directory is closed."""
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    words += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--"]
    delete = wire.frame([b"delete", container.id.encode(), b"1"])
    words += [sys.executable, "-I", "-S", "-c", _STRANGER, path, delete.hex()]
    done = await container.testbed.children.run(words, {"PATH": os.environ["PATH"]})
    _check(container, (done.status, done.out) == (0, ""), f"a stranger is answered: {done}")


async def _answer(stream: trio.SocketStream) -> bytes:
    answer = b""
    with trio.move_on_after(_PATIENCE) as scope:
        async for part in stream:
            answer += part
    return b"nothing in time" if scope.cancelled_caught else answer


def _check(container: "Container", right: bool, text: str) -> None:
    if not right:
        container.seen.bad_client = text


BadClient = Callable[["Container", str, bytes], Awaitable[None]]
_BAD_CLIENTS: dict[str, BadClient] = {
    "garbage": _garbage,
    "half": _half,
    "slow": _slow,
    "twice": _twice,
    "gone": _gone,
    "many": _many,
    "stranger": _stranger,
}
NAMES = tuple(_BAD_CLIENTS)
