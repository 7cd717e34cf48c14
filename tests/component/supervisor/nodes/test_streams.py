"""Streams between a caller's descriptors and a shim: all bytes, bounded memory, ends."""

import fcntl
import hashlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.nodes.connection import Shim, ShimError, ShimLost
from scrun.supervisor.nodes.streams import ContainerStreams
from scrun.supervisor.wire.frames import CLOSED, CREDIT, CREDIT_BYTES, DATA, END, PIECE, WINDOW
from tests.harness import users
from tests.harness.peer import Peer, Said, soon, talking

ENV = ChildEnv({"PATH": users.PATH})
SIZE = int(os.environ.get("SCRUN_TEST_MIB", "16")) << 20


pytestmark = pytest.mark.usefixtures("no_descriptor_stays")


class Callers:
    """The ends of the caller's streams."""

    def __init__(self) -> None:
        self._ours: list[int] = []
        stdin, self.typing = self.pipe()
        self.showing, stdout = self.pipe()
        self.complaining, stderr = self.pipe()
        self.stdio = (stdin, stdout, stderr)

    def pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self._ours += ends
        return ends

    def close(self, *fds: int) -> None:
        for fd in fds or self._ours[:]:
            self._ours.remove(fd)
            os.close(fd)

    def flags(self) -> list[int]:
        return [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in self.stdio]


@pytest.fixture
def callers() -> Iterator[Callers]:
    made = Callers()
    yield made
    made.close()


async def create(shim: Shim, peer: Peer, streams: ContainerStreams, error: str = "") -> None:
    async def answer() -> None:
        call = await peer.call("create")
        assert call["streams"] == streams.fields
        await peer.reply(call, **({"error": error} if error else {}))

    async with unwrapped() as nursery:
        nursery.start_soon(answer)
        await shim.call("create", id=f"c{streams.fields}", streams=streams.fields)


@asynccontextmanager
async def carried(
    stdio: tuple[int, int, int],
    *,
    direct: bool = True,
    terminal: bool = False,
    said: Said | None = None,
) -> AsyncIterator[tuple[Shim, Peer, ContainerStreams]]:
    async with (
        talking(direct=direct, said=said) as (shim, peer),
        shim.streams(stdio, terminal, ENV) as streams,
    ):
        await create(shim, peer, streams)
        yield shim, peer, streams


async def all_of(fd: int) -> bytes:
    """Read a pipe to its end, as another process would."""

    def read() -> bytes:
        parts = []
        while part := os.read(fd, 1 << 20):
            parts.append(part)
        return b"".join(parts)

    return await trio.to_thread.run_sync(read, abandon_on_cancel=True)


def write_all(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


class Sender:
    """Sends DATA as the window allows."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.window = WINDOW
        self.closed = trio.Event()
        self._more = trio.Event()

    async def listen(self) -> None:
        while True:
            kind, _, payload = await self.peer.frame()
            if kind == CREDIT:
                self.window += CREDIT_BYTES.unpack(payload)[0]
                assert self.window <= WINDOW
            else:
                assert kind == CLOSED
                self.closed.set()
            self._more.set()
            self._more = trio.Event()

    async def send(self, number: int, content: bytes) -> None:
        rest = memoryview(content)
        while rest and not self.closed.is_set():
            if not self.window:
                await self._more.wait()
                continue
            part = rest[: min(self.window, PIECE)]
            self.window -= len(part)
            await self.peer.send(DATA, number, bytes(part))
            rest = rest[len(part) :]


@pytest.mark.parametrize("direct", [True, False])
async def test_output_is_unchanged(callers: Callers, *, direct: bool) -> None:
    content = os.urandom(SIZE)
    flags = callers.flags()
    got: list[bytes] = []
    async with carried(callers.stdio, direct=direct) as (_, peer, streams):
        sender = Sender(peer)

        async def read() -> None:
            got.append(await all_of(callers.showing))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            nursery.start_soon(sender.listen)
            await sender.send(streams.fields["stdout"], content)
            for name in ("stdout", "stderr"):
                await peer.send(END, streams.fields[name])
            with trio.fail_after(30):
                await streams.finished(10)
            assert callers.flags() == flags
            callers.close(callers.stdio[1])  # nobody else keeps it open
            await soon(lambda: got)
            nursery.cancel_scope.cancel()
    assert hashlib.sha256(got[0]).digest() == hashlib.sha256(content).digest()


@pytest.mark.parametrize("direct", [True, False])
async def test_input_is_unchanged(callers: Callers, *, direct: bool) -> None:
    content = os.urandom(SIZE)
    flags = callers.flags()
    async with carried(callers.stdio, direct=direct) as (_, peer, streams):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, write_all, callers.typing, content)
            got = bytearray()
            while len(got) < SIZE:
                kind, number, payload = await peer.frame()
                assert (kind, number) == (DATA, streams.fields["stdin"])
                assert len(payload) <= PIECE
                got += payload
                await peer.credit(number, len(payload))
        callers.close(callers.typing)
        assert await peer.frame() == (END, streams.fields["stdin"], b"")
        assert callers.flags() == flags
    assert hashlib.sha256(got).digest() == hashlib.sha256(content).digest()


async def test_both_at_once_and_two_outputs(callers: Callers) -> None:
    """A filter: what is typed comes back, on one and the other."""
    content = os.urandom(SIZE // 4)
    found: dict[int, bytes] = {}
    async with carried(callers.stdio) as (_, peer, streams):
        fields = streams.fields
        window = {fields["stdout"]: WINDOW, fields["stderr"]: WINDOW}
        waiting: dict[int, bytearray] = {number: bytearray() for number in window}

        async def play() -> None:
            ended = False
            while not ended or any(waiting.values()):
                kind, number, payload = await peer.frame()
                if kind == CREDIT:
                    window[number] += CREDIT_BYTES.unpack(payload)[0]
                elif kind == DATA:
                    for rest in waiting.values():
                        rest += payload
                    await peer.credit(number, len(payload))
                else:
                    ended = kind == END
                for out, rest in waiting.items():
                    while count := min(window[out], len(rest), PIECE):
                        window[out] -= count
                        await peer.send(DATA, out, bytes(rest[:count]))
                        del rest[:count]
            for out in waiting:
                await peer.send(END, out)

        async def read(fd: int) -> None:
            found[fd] = await all_of(fd)

        def write() -> None:
            write_all(callers.typing, content)
            callers.close(callers.typing)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, callers.showing)
            nursery.start_soon(read, callers.complaining)
            nursery.start_soon(trio.to_thread.run_sync, write)
            await play()
            await streams.finished(10)
            callers.close(*callers.stdio[1:])
    assert found == {callers.showing: content, callers.complaining: content}


async def test_a_reader_that_stops_stops_the_sender(callers: Callers) -> None:
    content = os.urandom(3 * WINDOW)
    async with carried(callers.stdio) as (_, peer, streams), trio.open_nursery() as nursery:
        sender = Sender(peer)
        nursery.start_soon(sender.listen)
        nursery.start_soon(sender.send, streams.fields["stdout"], content)
        await soon(lambda: not sender.window)
        await trio.sleep(0.3)
        assert sender.window == 0  # the pipe holds less than a quarter of a window
        got = b""
        while len(got) < len(content):
            got += await trio.to_thread.run_sync(os.read, callers.showing, 100_000)
        assert got == content
        nursery.cancel_scope.cancel()


async def test_a_slow_reader_is_waited_for(callers: Callers) -> None:
    """However little patience there is with streams that nobody ends."""
    content = os.urandom(WINDOW)
    async with carried(callers.stdio) as (_, peer, streams), trio.open_nursery() as nursery:
        await peer.send(END, streams.fields["stderr"])
        for at in range(0, WINDOW, PIECE):
            await peer.send(DATA, streams.fields["stdout"], content[at : at + PIECE])
        await trio.sleep(0.1)
        finished = trio.Event()

        async def finish() -> None:
            await streams.finished(0.1)
            finished.set()

        nursery.start_soon(finish)
        await trio.sleep(0.5)
        assert not finished.is_set()
        await peer.send(END, streams.fields["stdout"])
        await trio.sleep(0.3)
        assert not finished.is_set()
        callers.close(callers.stdio[1])
        assert await all_of(callers.showing) == content
        await finished.wait()


async def test_streams_that_somebody_keeps_open(callers: Callers) -> None:
    async with carried(callers.stdio) as (_, peer, streams):
        await peer.send(DATA, streams.fields["stdout"], b"last words")
        await peer.send(END, streams.fields["stderr"])
        began = time.monotonic()
        await streams.finished(0.3)
        assert 0.25 < time.monotonic() - began < 2
        assert os.read(callers.showing, 100) == b"last words"
    # nobody was told to go on


async def test_leaving_says_what_is_closed(callers: Callers) -> None:
    async with talking(direct=True) as (shim, peer):
        async with shim.streams(callers.stdio, False, ENV) as streams:
            await create(shim, peer, streams)
            await trio.testing.wait_all_tasks_blocked(0.02)
        said = {(await peer.frame())[:2] for _ in range(3)}
        fields = streams.fields
        assert said == {
            (END, fields["stdin"]), (CLOSED, fields["stdout"]), (CLOSED, fields["stderr"])
        }  # fmt: skip
        # what was on its way then is dropped
        await peer.send(DATA, fields["stdout"], b"too late")
        await peer.send(END, fields["stdout"])
        await peer.credit(fields["stdin"], 5)
        await peer.send(CLOSED, fields["stdin"])
        async with shim.streams(callers.stdio, False, ENV) as others:
            await create(shim, peer, others)
            assert not set(others.fields.values()) & set(fields.values())


@pytest.mark.covers("security more of a stream than was allowed, or credit without end")
async def test_too_much(callers: Callers) -> None:
    async with carried(callers.stdio) as (shim, peer, streams):
        for _ in range(0, WINDOW + PIECE, PIECE):
            await peer.send(DATA, streams.fields["stdout"], bytes(PIECE))
        with trio.fail_after(5):
            await shim.lost.wait()


async def test_single_bytes_take_little_memory(callers: Callers) -> None:
    async with carried(callers.stdio) as (_, peer, streams):
        number = streams.fields["stdout"]
        await peer.send(DATA, number, bytes(PIECE))  # fills the pipe
        for _ in range(200):
            await peer.send_at_once(*[(DATA, number, b"x")] * 50)
        incoming = streams._incoming[0]
        await soon(lambda: sum(map(len, incoming._waiting)) > 10_000 + PIECE - 70_000)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert len(incoming._waiting) < 5


async def test_standard_input_that_ends_first(callers: Callers) -> None:
    callers.close(callers.typing)
    async with carried(callers.stdio) as (_, peer, streams):
        assert await peer.frame() == (END, streams.fields["stdin"], b"")


async def test_standard_input_is_left_alone_before_create(callers: Callers) -> None:
    os.write(callers.typing, b"precious")
    async with talking(direct=True) as (shim, peer):
        async with shim.streams(callers.stdio, False, ENV) as streams:
            with pytest.raises(ShimError, match="no such"):
                await create(shim, peer, streams, error="no such thing")
            await trio.sleep(0.05)
        assert os.read(callers.stdio[0], 100) == b"precious"


async def test_standard_input_that_nobody_takes(callers: Callers) -> None:
    flags = callers.flags()
    async with carried(callers.stdio) as (_, peer, streams), trio.open_nursery() as nursery:
        os.set_blocking(callers.typing, False)
        typed = waited = 0
        while typed < WINDOW or waited < 50:
            try:
                typed += os.write(callers.typing, bytes(65536))
                waited = 0
            except BlockingIOError:
                waited += 1
                await trio.sleep(0.01)
        assert typed <= WINDOW + (1 << 17)
        got = await peer.data(streams.fields["stdin"], WINDOW, credit=False)
        assert len(got) == WINDOW
        await peer.send(CLOSED, streams.fields["stdin"])
        await trio.sleep(0.05)
        del nursery
        assert callers.flags() == flags
    callers.close(callers.stdio[0])
    with pytest.raises(BrokenPipeError):
        os.write(callers.typing, b"x")


async def test_credit_of_single_bytes(callers: Callers) -> None:
    async with carried(callers.stdio) as (_, peer, streams):
        os.set_blocking(callers.typing, False)
        number = streams.fields["stdin"]
        got = b""
        sent = 0
        while len(got) < WINDOW + 3:
            try:
                sent += os.write(callers.typing, b"ab" * 5000)
            except BlockingIOError:
                pass
            if len(got) >= WINDOW:
                await peer.credit(number, 1)
            kind, _, payload = await peer.frame()
            assert kind == DATA
            got += payload
        assert len(got) == WINDOW + 3


async def test_a_reader_that_has_gone(callers: Callers) -> None:
    callers.close(callers.showing)
    async with carried(callers.stdio) as (_, peer, streams):
        number = streams.fields["stdout"]
        await peer.send(DATA, number, b"x")
        assert await peer.frame() == (CLOSED, number, b"")
        await peer.send(DATA, number, bytes(PIECE))  # on its way already
        await peer.send(END, streams.fields["stderr"])
        with trio.fail_after(2):
            await streams.finished(100)


async def test_a_reader_that_goes(callers: Callers) -> None:
    async with carried(callers.stdio) as (_, peer, streams), trio.open_nursery() as nursery:
        sender = Sender(peer)
        nursery.start_soon(sender.listen)
        nursery.start_soon(sender.send, streams.fields["stdout"], bytes(2 * WINDOW))
        await trio.to_thread.run_sync(os.read, callers.showing, 1000)
        callers.close(callers.showing)
        with trio.fail_after(5):
            await sender.closed.wait()
        nursery.cancel_scope.cancel()


async def test_the_callers_are_closed(callers: Callers, tmp_path: Path) -> None:
    """The supervisor closes its copies when the container runs."""
    (tmp_path / "in").write_bytes(b"typed")
    given = os.open(tmp_path / "in", os.O_RDONLY)
    stdio = (given, os.dup(callers.stdio[1]), os.dup(callers.stdio[2]))
    async with (
        talking(direct=True) as (shim, peer),
        shim.streams(stdio, False, ENV) as streams,
    ):
        for fd in stdio:
            os.close(fd)
        await create(shim, peer, streams)
        assert await peer.frame() == (DATA, streams.fields["stdin"], b"typed")
        await peer.send(DATA, streams.fields["stdout"], b"shown")
        assert await trio.to_thread.run_sync(os.read, callers.showing, 100) == b"shown"


async def test_output_that_cannot_be_written(callers: Callers) -> None:
    full, said = os.open("/dev/full", os.O_WRONLY), list[str]()
    stdio = (callers.stdio[0], full, callers.stdio[2])
    async with (
        talking(direct=True) as (shim, peer),
        shim.streams(stdio, False, ENV, said.append) as streams,
    ):
        await create(shim, peer, streams)
        await peer.send(DATA, streams.fields["stdout"], b"lost")
        assert await peer.frame() == (CLOSED, streams.fields["stdout"], b"")
        assert said == ["stdout: No space left on device; the rest of it is lost"]
        await peer.send(DATA, streams.fields["stderr"], b"shown")
        assert await trio.to_thread.run_sync(os.read, callers.complaining, 100) == b"shown"
    os.close(full)


async def test_dev_null_is_not_carried(callers: Callers) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    stdin, stdout, stderr = callers.stdio
    async with talking(direct=True) as (shim, _):
        for at, name in enumerate(("stdin", "stdout", "stderr")):
            fds = [stdin, stdout, stderr]
            fds[at] = null
            async with shim.streams((fds[0], fds[1], fds[2]), False, ENV) as streams:
                assert {*streams.fields} == {"stdin", "stdout", "stderr"} - {name}
    os.close(null)


@pytest.mark.parametrize("direct", [True, False])
async def test_the_shim_goes(callers: Callers, *, direct: bool) -> None:
    """What it has sent is written all the same."""
    content = os.urandom(WINDOW)
    async with carried(callers.stdio, direct=direct) as (shim, peer, streams):
        for at in range(0, WINDOW, PIECE):
            await peer.send(DATA, streams.fields["stdout"], content[at : at + PIECE])
        await peer.control[1].aclose()
        if peer.stream is not None:
            await peer.stream.aclose()
        with trio.fail_after(5):
            await shim.lost.wait()
        with pytest.raises(ShimLost):
            await shim.ended("c")
        callers.close(callers.stdio[1])
        assert await all_of(callers.showing) == content
        with trio.fail_after(5):
            await streams.finished(100)


async def test_streams_of_a_shim_that_has_gone(callers: Callers) -> None:
    async with talking() as (shim, peer):
        await peer.control[1].aclose()
        await shim.lost.wait()
        async with shim.streams(callers.stdio, False, ENV) as streams:
            with pytest.raises(ShimLost):
                await shim.call("create", id="c", streams=streams.fields)
            with trio.fail_after(5):
                await streams.finished(100)


async def test_cancelled_with_a_reader_that_does_not_read(callers: Callers) -> None:
    began = time.monotonic()
    with trio.move_on_after(0.3):
        async with carried(callers.stdio) as (_, peer, streams):
            for _ in range(0, WINDOW, PIECE):
                await peer.send(DATA, streams.fields["stdout"], bytes(PIECE))
            await trio.sleep_forever()
    assert time.monotonic() - began < 2
