"""Somebody on the way between a shim and its supervisor, who can do what he likes with the bytes.

He knows how frames look, but not the secret. What goes each way is a row of units: the random
bytes, the proof, the question for the code or the code, and then frames.
"""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import trio

from scrun.supervisor.wire.frames import DATA, HEADER
from scrun.supervisor.wire.seals import TAG
from tests.harness.peer import exactly

UP, DOWN = "up", "down"
"""From the shim to the supervisor, and back."""

DEEDS = ("flip", "drop", "repeat", "swap", "delay", "replay", "reflect", "insert", "cut")

_PROOF = 32
_PLAIN = 3  # units before the first sealed frame


class Deed(msgspec.Struct, frozen=True):
    """What he does.

    Attributes:
        kind: One of `DEEDS`; "" for nothing.
        way: UP or DOWN.
        number: To which unit.
        seed: Decides the rest.
        delay: Seconds, for "delay".
    """

    kind: str = ""
    way: str = UP
    number: int = 0
    seed: int = 0
    delay: float = 0.5


class Relay:
    """The relay.

    Attributes:
        port: Where it listens.
        target: Where the supervisor does.
        counts: How many units have come each way.
        has_acted: Whether the deed is done.
    """

    def __init__(self, deed: Deed, streams: bool = True) -> None:
        """Know what to do; `relaying` begins it.

        Args:
            deed: That.
            streams: Whether bytes of streams are sealed.
        """
        self.port = self.target = 0
        self.counts = {UP: 0, DOWN: 0}
        self.has_acted = False
        self._deed = deed
        self._streams = streams
        self._random = random.Random(deed.seed)
        self._seen: dict[str, list[bytes]] = {UP: [], DOWN: []}
        self._held = b""

    @asynccontextmanager
    async def relaying(self) -> AsyncIterator["Relay"]:
        """Relay to `target` while the block runs."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        async with trio.open_nursery() as nursery:

            async def carry(shim: trio.SocketStream) -> None:
                with suppress(OSError, trio.BrokenResourceError):
                    async with (
                        shim,
                        await trio.open_tcp_stream("127.0.0.1", self.target) as supervisor,
                        trio.open_nursery() as both,
                    ):
                        both.start_soon(self._pump, UP, shim, supervisor, both)
                        both.start_soon(self._pump, DOWN, supervisor, shim, both)

            nursery.start_soon(trio.serve_listeners, carry, listeners)
            yield self
            nursery.cancel_scope.cancel()

    async def _pump(
        self, way: str, source: trio.SocketStream, sink: trio.SocketStream, both: trio.Nursery
    ) -> None:
        with suppress(EOFError, trio.BrokenResourceError, trio.ClosedResourceError):
            for number in range(1 << 30):
                unit = await self._unit(number, source)
                self.counts[way] += 1
                self._seen[way].append(unit)
                await sink.send_all(await self._changed(way, number, unit))
        both.cancel_scope.cancel()

    async def _unit(self, number: int, source: trio.SocketStream) -> bytes:
        if number < _PLAIN - 1:
            return await exactly(source, _PROOF)
        is_sealed = number >= _PLAIN
        head = await exactly(source, HEADER.size + TAG * is_sealed)
        kind, _, length = HEADER.unpack_from(head)
        has_tag = is_sealed and length and (self._streams or kind != DATA)
        return head + await exactly(source, length + TAG * bool(has_tag))

    async def _changed(self, way: str, number: int, unit: bytes) -> bytes:
        deed = self._deed
        if self._held and way == deed.way:
            held, self._held = self._held, b""
            return unit + held
        if (way, number) != (deed.way, deed.number) or self.has_acted or not deed.kind:
            return unit
        self.has_acted = True
        other = DOWN if way == UP else UP
        if deed.kind == "flip":
            at = self._random.randrange(8 * len(unit))
            changed = bytearray(unit)
            changed[at // 8] ^= 1 << at % 8
            return bytes(changed)
        if deed.kind == "drop":
            return b""
        if deed.kind == "repeat":
            return unit * 2
        if deed.kind == "swap":
            self._held = unit
            return b""
        if deed.kind == "delay":
            await trio.sleep(deed.delay)
            return unit
        if deed.kind == "replay":
            return self._random.choice(self._seen[way][:-1] or [b""])
        if deed.kind == "reflect":
            return self._random.choice(self._seen[other] or [b""])
        if deed.kind == "insert":
            return self._random.randbytes(self._random.randrange(1, 100)) + unit
        assert deed.kind == "cut"
        return unit[: self._random.randrange(len(unit))]
