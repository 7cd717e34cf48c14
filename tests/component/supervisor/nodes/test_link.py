"""The supervisor's end of a connection: what it sends in silence, what it does not wait for."""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from scrun.supervisor.nodes.connection import BEGINS_WITH
from scrun.supervisor.nodes.dialing import Proved
from scrun.supervisor.nodes.link import Broken, Sealing, ShimLink, direct_link
from scrun.supervisor.wire.frames import DATA, QUIET, frame
from scrun.supervisor.wire.seals import NO_REST, Sealed, sealed
from tests.harness.frames import WholeFrames, framed

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")

MANY = 20
"""Payloads of 256 KiB; the last ones are sealed by GMAC."""

SECRET, BOTH = b"s" * 32, b"b" * 64


class End:
    """A supervisor's link, and the other end of its socket."""

    def __init__(self, link: ShimLink, stream: trio.SocketStream) -> None:
        self.link, self.stream = link, stream
        self.taken: list[bytes] = []
        self.reason = ""
        self.over = trio.Event()
        self.seal: Sealed
        self.seal, theirs = sealed(SECRET, BOTH, True)
        self._reader = WholeFrames(theirs)

    async def run(self) -> None:
        try:
            await self.link.run(lambda _kind, _stream, data: self.taken.append(bytes(data)))
        except Broken as error:
            self.reason = str(error)
            self.over.set()

    def frame(self, payload: bytes) -> bytes:
        return framed(self.seal, DATA, 1, payload)

    async def frames(self) -> list[tuple[int, int, bytes]]:
        return list(self._reader.feed(bytes(await self.stream.receive_some(1000))))


@asynccontextmanager
async def linked(*, gmac: bool = False) -> AsyncIterator[End]:
    ours, theirs = socket.socketpair()
    link = direct_link(Proved(ours.detach(), SECRET, BOTH), Sealing(quiet=20, gmac=gmac))
    link.seal()
    async with (
        trio.SocketStream(trio.socket.from_stdlib_socket(theirs)) as stream,
        trio.open_nursery() as nursery,
    ):
        end = End(link, stream)
        nursery.start_soon(end.run)
        yield end
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("can", [True, False])
async def test_a_shim_does_not_decide_alone_how_frames_are_sealed(*, can: bool) -> None:
    """It may say what it likes; we may have no OpenSSL."""
    async with linked(gmac=can) as end:
        end.link.use_gmac()
        if can:
            end.seal.use_gmac()
        large = bytes(1 << 18)
        for _ in range(MANY):
            await end.stream.send_all(end.frame(large))
        await end.stream.send_all(end.frame(b"end"))
        with trio.fail_after(5):
            while end.taken[-1:] != [b"end"] and not end.over.is_set():
                await trio.testing.wait_all_tasks_blocked(0.01)
        assert end.reason == ""
        assert b"".join(end.taken) == MANY * large + b"end"


async def test_what_is_no_frame_has_an_end() -> None:
    """Scripts of a site may write before the first frame, and a node that lies for ever."""
    readable, writable = os.pipe()
    link = ShimLink(readable, os.open(os.devnull, os.O_WRONLY), BEGINS_WITH)
    link._write_all = trio.sleep_forever  # type: ignore[method-assign]  # epoll(7) has no /dev/null
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def write() -> None:
            async with trio.lowlevel.FdStream(writable) as stream:
                while True:
                    await stream.send_all(b"x" * (1 << 16))

        with pytest.raises(Broken, match="it sent something that is not a frame"):
            await link.run(lambda *_: None)
        assert len(link.before) < 2 << 20
        nursery.cancel_scope.cancel()


async def test_silence_is_shown_once(autojump_clock: trio.testing.MockClock) -> None:
    async with linked() as end:
        for payload in (b"one", b"two"):
            end.link.put(DATA, 1, payload)
            began = trio.current_time()
            assert await end.frames() == [(DATA, 1, payload)]
            assert await end.frames() == [(QUIET, 0, b"")]
            assert trio.current_time() - began == pytest.approx(20)
            with trio.move_on_after(1e6) as scope:
                await end.frames()
            assert scope.cancelled_caught
        assert end.reason == ""


@pytest.mark.parametrize("size", [5, 40, 60])
async def test_the_rest_of_a_frame_does_not_come(
    size: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with linked() as end:
        await end.stream.send_all(end.frame(b"whole") + end.frame(b"x" * 100)[:size])
        with trio.fail_after(1000):
            await end.over.wait()
        assert (end.taken, end.reason) == ([b"whole"], NO_REST)
        assert trio.current_time() >= 300


async def test_silence_between_frames_is_no_forgery(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with linked() as end:
        await end.stream.send_all(end.frame(b"whole") + end.seal.head(QUIET, 0, 0))
        await trio.sleep(80_000)
        await end.stream.send_all(end.frame(b"more"))
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert end.taken == [b"whole", b"more"]
        assert end.reason == ""


async def test_frames_that_go_together() -> None:
    """The other end wakes up once for them: each write is a message of its socket here."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    link = ShimLink(ours.fileno(), ours.detach())
    with theirs:
        link.put(DATA, 1, b"alone")
        assert theirs.recv(100) == frame(DATA, 1, b"alone")
        with link.together():
            link.put(DATA, 2, b"one")
            with pytest.raises(BlockingIOError):
                theirs.recv(100)
            link.put(DATA, 3, b"two")
        assert theirs.recv(100) == frame(DATA, 2, b"one") + frame(DATA, 3, b"two")
    link.close("it is over")
