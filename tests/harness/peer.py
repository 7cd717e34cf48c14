"""A shim that a test plays itself: it speaks frames, and does nothing else."""

import json
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import MAGIC_NUMBER
from typing import Any, cast

import trio

from scrun.supervisor.log.journal import Journal
from scrun.supervisor.nodes.beginning import Direct, begun
from scrun.supervisor.nodes.connection import Shim, connected
from scrun.supervisor.nodes.messages import Hello
from scrun.supervisor.wire.frames import (
    CALL,
    CREDIT,
    CREDIT_BYTES,
    DATA,
    EVENT,
    PROTOCOL,
    QUIET,
    REPLY,
    knock,
    proof,
)
from scrun.supervisor.wire.seals import PLAIN, Plain, Sealed, sealed
from tests.harness.frames import Frame, WholeFrames, framed

HELLO = {
    "event": "hello",
    "protocol": PROTOCOL,
    "node": "node1",
    "pid": 7,
    "python": "3.6.8",
    "runtime": "/usr/bin/crun",
    "directory": "/tmp/shim",
    "environment": {"SLURM_JOB_ID": "1"},
}


class Said:
    """A journal that only remembers."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def write(self, level: str, text: str) -> None:
        self.lines.append((level, text))

    @property
    def journal(self) -> Journal:
        return cast("Journal", self)

    def __contains__(self, words: str) -> bool:
        return any(words in text for _, text in self.lines)


class Peer:
    """The node's end."""

    def __init__(self, receiving: trio.abc.ReceiveStream, sending: trio.abc.SendStream) -> None:
        self.control = (receiving, sending)
        self.stream: trio.SocketStream | None = None
        self.seal: Plain = PLAIN
        self._seals: tuple[Sealed, Sealed] | None = None
        self._readers: dict[object, WholeFrames] = {}
        self._frames: dict[object, list[Frame]] = {}

    async def hello(self, **other: object) -> None:
        await self.event(**{**HELLO, **other})

    async def event(self, **fields: object) -> None:
        await self.send(EVENT, 0, json.dumps(fields).encode())

    async def reply(self, call: dict[str, Any], **fields: object) -> None:
        await self.send(REPLY, 0, json.dumps({"call": call["call"], **fields}).encode())

    async def call(self, verb: str = "") -> dict[str, Any]:
        kind, stream, payload = await self.frame()
        assert (kind, stream) == (CALL, 0)
        call: dict[str, Any] = json.loads(payload)
        assert not verb or call["verb"] == verb
        return call

    async def _frame(self, receiving: trio.abc.ReceiveStream) -> Frame:
        frames = self._frames.setdefault(receiving, [])
        reader = self._readers.setdefault(receiving, WholeFrames())
        while not frames:
            data = await receiving.receive_some(65536)
            if not data:
                raise EOFError
            frames += [each for each in reader.feed(bytes(data)) if each[0] != QUIET]
        return frames.pop(0)

    async def frame(self) -> Frame:
        """The next frame, over the direct connection if there is one."""
        return await self._frame(self.stream or self.control[0])

    async def send(self, kind: int, stream: int, payload: bytes = b"") -> None:
        await self.send_at_once((kind, stream, payload))

    async def send_at_once(self, *frames: Frame) -> None:
        """Send frames that are read together."""
        seal = self.seal if self.stream else PLAIN
        content = b"".join(framed(seal, *each) for each in frames)
        await (self.stream or self.control[1]).send_all(content)

    async def credit(self, stream: int, count: int) -> None:
        await self.send(CREDIT, stream, CREDIT_BYTES.pack(count))

    async def data(self, stream: int, size: int, *, credit: bool = True) -> bytes:
        """Take so many bytes of a stream."""
        got = b""
        while len(got) < size:
            kind, number, payload = await self.frame()
            assert (kind, number) == (DATA, stream)
            got += payload
            if credit:
                await self.credit(stream, len(payload))
        return got

    async def come(self, call: dict[str, Any], *, direct: bool = True, **other: object) -> None:
        """Connect as `begin` says or do not, get the code and say hello."""
        if direct:
            assert await self.dial(call)
        await self.ask(**({} if direct else {"error": "it was not wanted"}))
        await self.hello(**other)

    async def ask(self, **words: object) -> bytes:
        """Ask for the code, over the direct connection if there is one; return it."""
        await self.event(event="code", python=MAGIC_NUMBER.hex(), **words)
        kind, stream, code = await self.frame()
        assert (kind, stream) == (DATA, 0)
        if self.stream is not None and self._seals is not None:
            self.seal, theirs = self._seals
            self._readers[self.stream] = WholeFrames(theirs)
        return code

    async def dial(self, call: dict[str, Any], secret: bytes | None = None) -> bool:
        """Connect as `begin` says; return whether both knew the secret."""
        stream = await connection(call)
        secret = secret or bytes.fromhex(call["secret"])
        both = await prove(stream, secret)
        if both:
            self.stream = stream
            self._seals = sealed(secret, both, call["seal_streams"])
        else:
            await stream.aclose()
        return bool(both)

    async def close(self) -> None:
        for stream in (*self.control, self.stream):
            if stream is not None:
                await stream.aclose()


async def connection(call: dict[str, Any]) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", call["port"])


async def prove(stream: trio.SocketStream, secret: bytes) -> bytes:
    """Do the shim's part of the proof; return the random bytes if the supervisor's is right."""
    mine = knock(secret, os.urandom(16))
    try:
        await stream.send_all(mine)
        both = mine + await exactly(stream, 32)
        await stream.send_all(proof(secret, b"shim", both))
        return both if await exactly(stream, 32) == proof(secret, b"supervisor", both) else b""
    except (EOFError, trio.BrokenResourceError):
        return b""


class Wire:
    """A direct connection after the proof."""

    def __init__(self, stream: trio.SocketStream, secret: bytes, both: bytes) -> None:
        self.stream = stream
        self._seals = sealed(secret, both, True)
        self._seal: Plain = PLAIN
        self._reader = WholeFrames()

    async def ask(self) -> bytes:
        await self.send(EVENT, json.dumps({"event": "code", "python": ""}).encode())
        kind, stream, code = await self.frame()
        assert (kind, stream) == (DATA, 0)
        self._seal, theirs = self._seals
        self._reader = WholeFrames(theirs)
        return code

    async def send(self, kind: int, payload: bytes) -> None:
        await self.stream.send_all(framed(self._seal, kind, 0, payload))

    async def frame(self) -> Frame:
        while True:
            data = await self.stream.receive_some(65536)
            if not data:
                raise EOFError
            for found in self._reader.feed(bytes(data)):
                if found[0] != QUIET:
                    return found


async def exactly(stream: trio.abc.ReceiveStream, size: int) -> bytes:
    got = b""
    while len(got) < size:
        part = await stream.receive_some(size - len(got))
        if not part:
            raise EOFError
        got += part
    return got


@asynccontextmanager
async def played(said: Said | None = None) -> AsyncIterator[tuple[Shim, Peer]]:
    """A supervisor's end, and ours; nothing is said yet."""
    there, to_srun = os.pipe()
    from_srun, back = os.pipe()
    peer = Peer(trio.lowlevel.FdStream(there), trio.lowlevel.FdStream(back))
    try:
        async with connected(to_srun, from_srun, (said or Said()).journal) as shim:
            yield shim, peer
    finally:
        with trio.CancelScope(shield=True):
            await peer.close()


@asynccontextmanager
async def talking(
    *, direct: bool = False, said: Said | None = None
) -> AsyncIterator[tuple[Shim, Peer]]:
    """The same after the greeting, and a direct connection or none."""
    async with played(said) as (shim, peer):
        async with trio.open_nursery() as nursery:
            call, _ = await beginning(shim, peer, nursery, said=said)
            await peer.come(call, direct=direct)
        assert shim.is_direct is direct
        yield shim, peer


async def beginning(
    shim: Shim,
    peer: Peer,
    nursery: trio.Nursery,
    *,
    said: Said | None = None,
    place: str = "",
    **how: Any,
) -> tuple[dict[str, Any], list[Hello]]:
    """Have a shim come; return the call `begin`, and where its hello will be."""
    hellos: list[Hello] = []

    @nursery.start_soon
    async def begin() -> None:
        direct = Direct(**{"allowed": True, "ports": None, **how})
        hellos.append(await begun(shim, direct, (said or Said()).journal, place, ""))

    return await peer.call("begin"), hellos


def silent_connection(call: dict[str, Any]) -> socket.socket:
    return socket.create_connection(("127.0.0.1", call["port"]))


async def soon(what: object, *, within: float = 5.0) -> None:
    """Wait until a callable is true."""
    assert callable(what)
    end = time.monotonic() + within
    while not what():
        assert time.monotonic() < end
        await trio.sleep(0.005)
