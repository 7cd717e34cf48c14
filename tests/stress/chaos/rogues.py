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
    from tests.stress.chaos.life import Life

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


async def misuse(life: "Life") -> None:
    """Do what the fault's name says to the supervisor's socket of a life."""
    name = life.plan.fault.name.removeprefix("rogue-")
    path = f"{life.place.root_of(life.plan)}/{life.id}/supervisor"
    frame = wire.frame([b"state", life.id.encode()])
    try:
        await _ROGUES[name](life, path, frame)
    except OSError as error:
        life.note(f"the supervisor hung up: {error}")
    life.hit(f"a client that does not behave: {name}")


async def _connect(path: str) -> trio.SocketStream:
    return await trio.open_unix_socket(path)


async def _garbage(life: "Life", path: str, frame: bytes) -> None:
    async with await _connect(path) as stream:
        await stream.send_all(os.urandom(3000))
        await stream.send_eof()
        with trio.move_on_after(_PATIENCE):
            await stream.receive_some()


async def _half(life: "Life", path: str, frame: bytes) -> None:
    async with await _connect(path) as stream:
        await stream.send_all(frame[:-3])
        await trio.sleep(life.plan.pause)


async def _slow(life: "Life", path: str, frame: bytes) -> None:
    async with await _connect(path) as stream:
        for byte in frame:
            await stream.send_all(bytes([byte]))
            await trio.sleep(0.02)
        answer = await _answer(stream)
        _check(life, answer[:1] in (b"\0", b"\1"), f"asked slowly, it answers {answer!r}")


async def _twice(life: "Life", path: str, frame: bytes) -> None:
    async with await _connect(path) as stream:
        await stream.send_all(frame * 2)
        answer = await _answer(stream)
        _check(life, answer.count(b'"ociVersion"') <= 1, f"asked twice, it answers {answer!r}")


async def _gone(life: "Life", path: str, frame: bytes) -> None:
    for _ in range(5):
        async with await _connect(path) as stream:
            await stream.send_all(frame)
            linger = struct.pack("ii", 1, 0)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


async def _many(life: "Life", path: str, frame: bytes) -> None:
    streams = [await _connect(path) for _ in range(60)]
    for stream in streams:
        await stream.send_all(frame[:7])
    await trio.sleep(0.1)
    for stream in streams:
        await stream.aclose()


async def _stranger(life: "Life", path: str, frame: bytes) -> None:
    """Ask as another user, to whom no directory is closed."""
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    words += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--"]
    delete = wire.frame([b"delete", life.id.encode(), b"1"])
    words += [sys.executable, "-I", "-S", "-c", _STRANGER, path, delete.hex()]
    done = await life.place.children.run(words, {"PATH": os.environ["PATH"]})
    _check(life, (done.status, done.out) == (0, ""), f"a stranger is answered: {done}")


async def _answer(stream: trio.SocketStream) -> bytes:
    answer = b""
    with trio.move_on_after(_PATIENCE) as scope:
        async for part in stream:
            answer += part
    return b"nothing in time" if scope.cancelled_caught else answer


def _check(life: "Life", right: bool, text: str) -> None:
    if not right:
        life.seen.rogue = text


Rogue = Callable[["Life", str, bytes], Awaitable[None]]
_ROGUES: dict[str, Rogue] = {
    "garbage": _garbage,
    "half": _half,
    "slow": _slow,
    "twice": _twice,
    "gone": _gone,
    "many": _many,
    "stranger": _stranger,
}
NAMES = tuple(_ROGUES)
