"""Input that is read exactly, whenever its reader is killed."""

import errno
import fcntl
import os
import pty
import random
import signal
import socket
import struct
import time
import tty
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest
import trio

from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.nodes.counted import PIPE, RING, CountedSource, Ring
from scrun.supervisor.nodes.ends import RegularFile
from scrun.supervisor.nodes.restartable_streams import NO_STDIO, Deposited, RestartableStreams
from scrun.supervisor.wire.frames import WINDOW

ENV = ChildEnv({})


def left(fds: dict[str, int], keeping: Deposited) -> RestartableStreams:
    """What a dead supervisor has left."""
    return RestartableStreams(NO_STDIO, ENV, keeping, fds)


DATA = b"".join(b"%07d\n" % number for number in range(300_000))
Kind = Literal["pipe", "terminal", "socket", "file"]


class Kept(Deposited):
    """Keeps descriptors in this process."""

    def __init__(self) -> None:
        self.fds: dict[str, int] = {}
        self.why = ""

    def hold(self, fds: Mapping[str, int]) -> None:
        self.drop(*fds)
        self.fds.update({name: os.dup(fd) for name, fd in fds.items()})

    def share(self, fds: Mapping[str, int]) -> None:
        self.hold(fds)

    def drop(self, *beginnings: str) -> None:
        for name in [name for name in self.fds if name.startswith(beginnings)]:
            os.close(self.fds.pop(name))

    def give_up(self, why: str) -> None:
        self.why = why

    def copies(self) -> dict[str, int]:
        return {name: os.dup(fd) for name, fd in self.fds.items()}


def ends(kind: Kind, tmp_path: Path) -> tuple[int, int]:
    """Return what is to be read, and what to write to."""
    if kind == "pipe":
        return os.pipe()
    if kind == "terminal":
        ours, theirs = pty.openpty()
        tty.setraw(theirs)
        return theirs, ours
    if kind == "socket":
        one, other = socket.socketpair()
        return one.detach(), other.detach()
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return os.open(path, os.O_RDONLY), -1


def write_all(to: int, size: int) -> int:
    """Write DATA in a process of its own."""
    if pid := os.fork():
        return pid
    try:
        rest = memoryview(DATA)[:size]
        while rest:
            rest = rest[os.write(to, rest[:5000]) :]
    finally:
        os._exit(0)


async def read_on(kept: Kept, at: int, to: int) -> None:
    """Be a supervisor: give away what is read, with the number of its first byte."""
    async with left(kept.copies(), kept).source() as source:
        assert isinstance(source, CountedSource)
        source.go_to(at)
        room = memoryview(bytearray(WINDOW // 8))
        while count := await source.read_into(room):
            piece = bytes(room[:count])
            os.write(to, struct.pack("QQ", at, count) + piece)
            at += count


def pieces(fd: int) -> tuple[int, bytes] | None:
    """Take what came whole, as the shim does; None if a kill has cut it off."""
    head = os.read(fd, 16)
    if len(head) < 16:
        return None
    at, count = struct.unpack("QQ", head)
    piece = b""
    while len(piece) < count:
        more = os.read(fd, count - len(piece))
        if not more:
            return None
        piece += more
    return at, piece


@pytest.mark.parametrize("kind", ["pipe", "terminal", "socket", "file"])
def test_each_byte_once(kind: Kind, tmp_path: Path, dice: random.Random) -> None:
    """The reader is killed many times. The shim knows how many bytes it has."""
    size = len(DATA) if kind != "terminal" else len(DATA) // 4
    source, to = ends(kind, tmp_path)
    kept = Kept()

    async def begin() -> None:
        """Give away the first bytes, and be killed."""
        async with RestartableStreams((source, 1, 2), ENV, kept).source() as found:
            room = memoryview(bytearray(10))
            assert await found.read_into(room) == 10
            assert bytes(room) == DATA[:10]
            kept.fds = {name: os.dup(fd) for name, fd in kept.fds.items()}
            kept.drop = lambda *_: None  # type: ignore[method-assign]

    writer = write_all(to, size) if to >= 0 else 0
    trio.run(begin)
    kept.drop = Kept.drop.__get__(kept)  # type: ignore[method-assign]
    os.close(source)
    got, kills = bytearray(DATA[:10]), 0
    if writer and kind != "terminal":
        os.close(to)
    while len(got) < size:
        reads, writes = os.pipe()
        fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, WINDOW // 2)  # with two pieces less than it
        if (pid := os.fork()) == 0:
            try:
                trio.run(read_on, kept, len(got), writes)
            finally:
                os._exit(0)
        os.close(writes)
        until = time.monotonic() + dice.uniform(0.05, 0.4)
        while time.monotonic() < until and len(got) < size and (piece := pieces(reads)):
            at, content = piece
            assert at == len(got)
            got += content
            if dice.random() < 0.5:
                break  # and what it has read besides did not arrive
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reads)
        kills += 1
    assert bytes(got) == DATA[:size]
    assert kills > 3
    if writer:
        os.waitpid(writer, 0)
    with suppress(OSError):
        os.close(to)


@pytest.mark.parametrize("read", [0, 4])
async def test_who_was_about_to_read_has_not_read(read: int) -> None:
    """It was killed between the note and the read, or between the read and the note."""
    readable, writable = os.pipe()
    kept = Kept()
    os.write(writable, b"abc1234")
    async with RestartableStreams((readable, 1, 2), ENV, kept).source() as source:
        assert isinstance(source, CountedSource)
        room = memoryview(bytearray(3))
        assert await source.read_into(room) == 3
        ring = source._ring
        assert ring is not None
        os.splice(readable, source._pipe, 4)
        ring.begin(4, 4)
        os.readv(source._pipe, [ring.at(3, read)])
        others = kept.copies()
    async with left(others, Kept()).source() as successor:
        assert isinstance(successor, CountedSource)
        successor.go_to(3)
        room = memoryview(bytearray(10))
        assert await successor.read_into(room) == 4
        assert bytes(room[:4]) == b"1234"
        os.close(writable)
        assert await successor.read_into(room) == 0
    os.close(readable)


async def test_what_has_not_arrived_outlives_the_end() -> None:
    """The end was read, and another supervisor tells it again, after the bytes before."""
    readable, writable = os.pipe()
    kept = Kept()
    os.write(writable, b"abc")
    os.close(writable)
    room = memoryview(bytearray(10))
    async with RestartableStreams((readable, 1, 2), ENV, kept).source() as source:
        assert await source.read_into(room) == 3
        assert await source.read_into(room) == 0
    os.close(readable)
    assert list(kept.fds) == [f"input.{RING}"]
    resumed = left(kept.copies(), kept)
    assert resumed.has_input
    async with resumed.source() as successor:
        assert isinstance(successor, CountedSource)
        successor.go_to(1)
        assert await successor.read_into(room) == 2
        assert bytes(room[:2]) == b"bc"
        assert await successor.read_into(room) == 0


async def test_what_has_ended_does_not_begin_again(tmp_path: Path) -> None:
    """A file may grow, and a terminal goes on after ^D: a successor reads no more, either."""
    (path := tmp_path / "file").write_bytes(b"abc")
    kept, room = Kept(), memoryview(bytearray(10))
    with RegularFile(os.open(path, os.O_RDONLY)) as file:
        source = CountedSource(file, kept.hold)
        assert await source.read_into(room) == 3
        assert await source.read_into(room) == 0
        source.close()
        with path.open("ab") as more:
            more.write(b"more")
        successor = CountedSource(file, kept.hold, Ring(kept.copies()[RING]))
        successor.go_to(1)
        assert await successor.read_into(room) == 2
        assert await successor.read_into(room) == 0
        successor.close()
    kept.drop("")


async def test_a_writer_sees_that_nobody_reads() -> None:
    readable, writable = os.pipe()
    kept = Kept()
    async with RestartableStreams((readable, 1, 2), ENV, kept).source() as source:
        os.close(readable)
        os.write(writable, b"abc")
        assert await source.read_into(memoryview(bytearray(10))) == 3
        assert f"input.{PIPE}" in kept.fds
    with pytest.raises(BrokenPipeError):
        os.write(writable, b"more")
    os.close(writable)


async def test_what_cannot_be_moved_is_not_kept() -> None:
    """A socket of messages."""
    fd, other = (one.detach() for one in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    os.write(other, b"\0")
    kept = Kept()
    async with RestartableStreams((fd, 1, 2), ENV, kept).source() as source:
        assert await source.read_into(memoryview(bytearray(1))) == 1
    assert "cannot be handed over" in kept.why
    assert not kept.fds
    os.close(fd)
    os.close(other)


async def test_what_knows_no_splice_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """As terminals of old kernels."""

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EINVAL, "")

    ours, theirs = os.openpty()
    tty.setraw(theirs)
    kept = Kept()
    monkeypatch.setattr(os, "splice", refuse)
    async with RestartableStreams((theirs, 1, 2), ENV, kept).source() as source:
        for piece in (b"x" * 10, b"y" * 3000):
            os.write(ours, piece)
            room = memoryview(bytearray(5000))
            got = b""
            while len(got) < len(piece):
                got += bytes(room[: await source.read_into(room)])
            assert got == piece
    assert not kept.why
    os.close(ours)
    os.close(theirs)
