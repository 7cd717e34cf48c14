"""Output that is written exactly, whenever its writer is killed."""

import itertools
import os
import random
import signal
import socket
import time
import tty
from contextlib import suppress
from pathlib import Path

import pytest

from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.nodes.counted import CountedPipe
from scrun.supervisor.nodes.ends import Gone, open_again
from scrun.supervisor.nodes.restartable_streams import NO_STDIO, Deposited, RestartableStreams

ENV = ChildEnv({})


class Kept(Deposited):
    """Keeps descriptors in this process."""

    def __init__(self) -> None:
        self.fds: dict[str, int] = {}
        self.why = ""

    def hold(self, fds: "dict[str, int]") -> None:  # type: ignore[override]
        self.fds.update({name: os.dup(fd) for name, fd in fds.items()})

    def share(self, fds: "dict[str, int]") -> None:  # type: ignore[override]
        self.hold(fds)

    def drop(self, *beginnings: str) -> None:
        for name in [name for name in self.fds if name.startswith(beginnings)]:
            os.close(self.fds.pop(name))

    def give_up(self, why: str) -> None:
        self.why = why


def left(fds: dict[str, int], keeping: Deposited) -> RestartableStreams:
    """What a dead supervisor has left."""
    return RestartableStreams(NO_STDIO, ENV, keeping, fds)


DATA = b"".join(b"%07d\n" % number for number in range(200_000))


def write_on(kept: Kept, done: int) -> None:
    """Write the rest of DATA, in a process that may be killed."""
    ends = left(dict(kept.fds), kept)
    sink = ends._sinks["stdout"]
    assert isinstance(sink, CountedPipe)
    rest = memoryview(DATA)[ends.written["stdout"] :]
    while rest or sink.pending:
        count = sink.try_write(rest[:100_000])
        rest = rest[count:]
        if not count:
            sink._move_on()  # as `flush` does, again and again
            time.sleep(0.0005)
    os._exit(0)


@pytest.mark.parametrize("kind", ["pipe", "terminal", "socket"])
def test_each_byte_once(dice: random.Random, kind: str) -> None:
    """Its writer is killed many times; a slow reader gets each byte once."""
    if kind == "pipe":
        readable, writable = os.pipe()
    elif kind == "socket":
        readable, writable = (one.detach() for one in socket.socketpair())
    else:
        readable, own = os.openpty()
        tty.setraw(own)
        writable = open_again(own, os.O_WRONLY)
        os.close(own)
    kept = Kept()
    first = left({"stdout": os.dup(writable)}, kept)
    sink = first._sinks["stdout"]
    assert sink.try_write(memoryview(DATA)[:100]) == 100
    os.close(writable)
    got = bytearray()
    os.set_blocking(readable, False)
    over = False
    kills = 0
    for rounds in itertools.count():  # a busy machine takes longer
        if over:
            break
        pid = os.fork()
        if pid == 0:
            write_on(kept, 0)
        until = time.monotonic() + dice.uniform(0, 0.003 * (1 + rounds / 20))
        while time.monotonic() < until:
            try:
                got += os.read(readable, 50_000)
            except BlockingIOError:
                time.sleep(0.0002)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        over = os.WIFEXITED(status)
        kills += not over
    kept.drop("stdout")
    sink.close()
    sink.plain.close()
    os.set_blocking(readable, True)
    with suppress(OSError):  # the end of a terminal
        while piece := os.read(readable, 1 << 20):
            got += piece
    os.close(readable)
    assert bytes(got) == DATA
    assert kills > 3


async def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    kept = Kept()
    with path.open("wb") as file:
        ends = RestartableStreams((0, file.fileno(), 2), ENV, kept)
        async with ends.sink("stdout") as sink:
            assert await sink.write(memoryview(b"hello ")) == 6
            others = {name: os.dup(fd) for name, fd in kept.fds.items()}
    successor = Kept()
    resumed = left(others, successor)
    assert "stdout" in successor.fds
    assert resumed.written == {"stdout": 6}
    async with resumed.sink("stdout") as sink:
        await sink.write(memoryview(b"world"))
    assert path.read_bytes() == b"hello world"
    assert not successor.fds


async def test_what_is_neither_is_not_kept() -> None:
    kept = Kept()
    device = os.open("/dev/full", os.O_WRONLY)
    async with RestartableStreams((0, device, 2), ENV, kept).sink("stdout"):
        assert "cannot be handed over" in kept.why
        assert not kept.fds
    os.close(device)


def test_who_was_about_to_write_has_not_written() -> None:
    """It was killed between the note and the write, or between the write and the note."""
    for written in (0, 5):
        readable, writable = os.pipe()
        kept = Kept()
        sink = left({"stdout": writable}, kept)._sinks["stdout"]
        assert isinstance(sink, CountedPipe)
        sink.try_write(memoryview(b"abc"))
        assert sink._count is not None
        sink._count.begin(5)
        os.write(sink._pipe, b"12345"[:written])
        assert left(dict(kept.fds), Kept()).written == {"stdout": 3 + written}
        os.close(readable)


@pytest.mark.parametrize("written", [0, 4])
async def test_a_file_tells_by_its_offset(tmp_path: Path, written: int) -> None:
    kept = Kept()
    with (tmp_path / "file").open("wb") as file:
        ends = RestartableStreams((0, file.fileno(), 2), ENV, kept)
        async with ends.sink("stdout") as sink:
            await sink.write(memoryview(b"abc"))
            count = sink._count  # type: ignore[attr-defined]
            count.begin(4, 3)
            os.write(file.fileno(), b"1234"[:written])
            others = {name: os.dup(fd) for name, fd in kept.fds.items()}
            assert left(others, Kept()).written == {"stdout": 3 + written}


async def test_a_terminal_that_was_hung_up() -> None:
    """splice(2) says of it what it says of devices to which nothing can be moved."""
    ours, theirs = os.openpty()
    kept = Kept()
    ends = RestartableStreams((theirs, theirs, theirs), ENV, kept)
    async with ends.sink("terminal") as sink, ends.source() as source:
        assert sink.try_write(memoryview(b"abc")) == 3
        os.close(ours)
        with pytest.raises(Gone, match="Input/output error"):
            sink.try_write(memoryview(b"abc"))
        assert await source.read_into(memoryview(bytearray(10))) == 0
    assert not kept.why
    os.close(theirs)
