"""The caller's streams, shared by several tasks."""

import fcntl
import os
import termios
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
import trio.testing

from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.nodes.ends import Gone, Sink, Source
from scrun.supervisor.nodes.shared import SharedStreams

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")

ENV = ChildEnv({})


class Shared:
    """Shared streams, and the other ends of the caller's descriptors."""

    def __init__(self, to_stdin: int, from_stdout: int, streams: SharedStreams) -> None:
        self.to_stdin, self.from_stdout, self.streams = to_stdin, from_stdout, streams

    async def output(self) -> bytes:
        await trio.testing.wait_all_tasks_blocked()
        try:
            return os.read(self.from_stdout, 1 << 20)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        for fd in (self.to_stdin, self.from_stdout):
            if fd >= 0:
                os.close(fd)


@asynccontextmanager
async def shared(tasks: int, **how: bool) -> AsyncIterator[Shared]:
    stdin, to_stdin = os.pipe()
    from_stdout, stdout = os.pipe()
    os.set_blocking(from_stdout, False)
    null = os.open(os.devnull, os.O_RDWR)
    streams = SharedStreams((stdin, stdout, null), tasks, ENV, **how)
    whole = Shared(to_stdin, from_stdout, streams)
    try:
        async with streams.opened():
            for fd in (stdin, stdout, null):
                os.close(fd)
            yield whole
    finally:
        whole.close()


async def read_all(source: Source, piece: int = 1000) -> bytes:
    got, room = b"", memoryview(bytearray(piece))
    while count := await source.read_into(room):
        got += bytes(room[:count])
    return got


@asynccontextmanager
async def sinks(streams: SharedStreams, tasks: Sequence[int]) -> AsyncIterator[list[Sink]]:
    async with AsyncExitStack() as stack:
        ends = [streams.of(task) for task in tasks]
        yield [await stack.enter_async_context(end.sink("stdout")) for end in ends]


async def test_input_is_for_all() -> None:
    data = os.urandom(300_000)
    got: dict[int, bytes] = {}

    async def take(whole: Shared, task: int) -> None:
        async with whole.streams.of(task).source() as source:
            got[task] = await read_all(source)

    async with shared(3) as whole, trio.open_nursery() as nursery:
        for task in (0, 1, 2):
            nursery.start_soon(take, whole, task)
        await trio.to_thread.run_sync(os.write, whole.to_stdin, data[:200_000])
        await trio.to_thread.run_sync(os.write, whole.to_stdin, data[200_000:])
        os.close(whole.to_stdin)
        whole.to_stdin = -1
    assert got == {0: data, 1: data, 2: data}


async def test_who_has_ended_delays_nobody() -> None:
    async with shared(2) as whole:
        async with whole.streams.of(0).source() as source:
            os.write(whole.to_stdin, b"one")
            assert await source.read_into(memoryview(bytearray(9))) == 3
        async with whole.streams.of(1).source() as source:
            room = memoryview(bytearray(9))
            assert await source.read_into(room) == 3
            os.write(whole.to_stdin, b"two")
            assert await source.read_into(room) == 3
            assert bytes(room[:3]) == b"two"


async def test_nothing_is_read_before_a_task_wants_it() -> None:
    async with shared(1) as whole:
        os.write(whole.to_stdin, b"one")
        await trio.testing.wait_all_tasks_blocked()
        waiting = bytearray(4)
        fcntl.ioctl(whole.to_stdin, termios.FIONREAD, waiting)
        assert int.from_bytes(waiting, "little") == 3


async def test_lines_are_whole() -> None:
    async with shared(2) as whole, sinks(whole.streams, (0, 1)) as (one, two):
        for sink, text in ((one, b"a\nbc"), (two, b"x"), (one, b"d\n"), (two, b"y\nz")):
            assert sink.try_write(memoryview(text)) == 0
            assert await sink.write(memoryview(text)) == len(text)
        assert await whole.output() == b"a\nbcd\nxy\n"
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(two.write, memoryview(b"-" * 70_000))  # more than a pipe holds
                got = b""
                while len(got) < 70_001:
                    got += await whole.output()
        assert got == b"z" + b"-" * 70_000


async def test_the_rest_comes_at_the_end() -> None:
    async with shared(2) as whole:
        async with sinks(whole.streams, (0, 1)) as (one, two):
            await one.write(memoryview(b"rest"))
            await two.write(memoryview(b"more"))
            assert await whole.output() == b""
        await whole.streams.finished()
        assert sorted(await whole.output()) == sorted(b"restmore")
        assert os.read(whole.from_stdout, 1) == b""  # nobody has it open any more


async def test_unbuffered() -> None:
    async with shared(1, lines=False) as whole, sinks(whole.streams, (0,)) as (one,):
        await one.write(memoryview(b"prompt: "))
        assert await whole.output() == b"prompt: "


@pytest.mark.parametrize("lines", [True, False])
async def test_labels(*, lines: bool) -> None:
    async with shared(11, labels=True, lines=lines) as whole:
        ends = [0, 10]
        async with sinks(whole.streams, ends) as (one, two):
            await one.write(memoryview(b"a\n\nb"))
            assert await whole.output() == b" 0: a\n 0: \n"
            await two.write(memoryview(b"c\n"))
            assert await whole.output() == b"10: c\n"
        assert await whole.output() == b" 0: b\n"


async def test_nobody_reads_any_more() -> None:
    async with shared(2) as whole, sinks(whole.streams, (0, 1)) as (one, two):
        os.close(whole.from_stdout)
        whole.from_stdout = -1
        with pytest.raises(Gone):
            await one.write(memoryview(b"a\n"))
        with pytest.raises(Gone):
            await two.write(memoryview(b"a\n"))


async def test_what_is_kept_open_is_not_waited_for() -> None:
    async with shared(2) as whole, sinks(whole.streams, (0,)):
        with trio.fail_after(1):
            await whole.streams.finished()
