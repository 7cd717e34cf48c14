"""Output that is kept: the file, those who read it, and the descriptors before it."""

import fcntl
import os
import resource
import socket
import struct
import termios
import tty
from contextlib import aclosing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from scrun import main as program
from scrun.supervisor.containers.capture import CapturedOutput, Followed
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.daemon import requests
from scrun.supervisor.sessions.viewers import follow
from tests.harness.processes import descriptors

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")


class Growing:
    """A file that is written meanwhile."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()
        self.followed = Followed(str(path))

    def add(self, content: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(content)
        self.followed.grew()

    async def read(self, *, from_now: bool = False) -> bytes:
        found = b""
        with trio.fail_after(20):
            async with aclosing(self.followed.read(from_now=from_now)) as pieces:
                async for piece in pieces:
                    assert 0 < len(piece) <= 64 * 1024
                    found += piece
        return found


@pytest.fixture
def growing(tmp_path: Path) -> Growing:
    return Growing(tmp_path / "output")


async def test_each_reader_gets_all(growing: Growing) -> None:
    found: list[bytes] = []

    async def read(*, from_now: bool = False) -> None:
        found.append(await growing.read(from_now=from_now))

    async with trio.open_nursery() as nursery:
        growing.add(b"a")
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        growing.add(b"b")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(read)
        nursery.start_soon(lambda: read(from_now=True))
        await trio.testing.wait_all_tasks_blocked()
        growing.add(b"c")
        growing.add(b"d")
        growing.followed.end()
    assert sorted(found) == [b"abcd", b"abcd", b"cd"]


async def test_one_who_comes_late_gets_all_and_waits_for_nothing(growing: Growing) -> None:
    growing.add(b"a")
    growing.followed.end()
    assert await growing.read() == b"a"
    assert await growing.read(from_now=True) == b""
    with trio.fail_after(1):
        await growing.followed.more()


async def test_an_empty_one(growing: Growing) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(growing.read)
        await trio.testing.wait_all_tasks_blocked()
        growing.followed.grew()  # nothing new: it goes on waiting
        await trio.testing.wait_all_tasks_blocked()
        growing.followed.end()
    assert await growing.read() == b""


async def test_a_slow_reader_holds_nobody_up_and_misses_nothing(growing: Growing) -> None:
    content = [bytes([65 + number]) * 300_000 for number in range(12)]
    slow, goes_on = b"", trio.Event()

    async def read_slowly() -> None:
        nonlocal slow
        async with aclosing(growing.followed.read(from_now=False)) as pieces:
            async for piece in pieces:
                slow += piece
                await goes_on.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_slowly)
        for piece in content:
            growing.add(piece)
            await trio.testing.wait_all_tasks_blocked()
        growing.followed.end()
        assert await growing.read() == b"".join(content)
        assert len(slow) <= 64 * 1024
        goes_on.set()
    assert slow == b"".join(content)


async def test_end_while_it_reads(growing: Growing) -> None:
    growing.add(b"a")
    found = b""
    async with aclosing(growing.followed.read(from_now=False)) as pieces:
        async for piece in pieces:
            found += piece
            if piece == b"a":
                growing.add(b"b")
                growing.followed.end()
    assert found == b"ab"


async def test_a_follower_whose_reader_goes(growing: Growing) -> None:
    growing.add(b"x" * 200_000)
    sent = []

    async def send(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        sent.append(data)
        if len(sent) == 3:
            raise BrokenPipeError

    before = descriptors()
    with pytest.raises(BrokenPipeError):
        await follow(growing.followed, send)
    assert descriptors() == before  # at once, and not when somebody collects garbage
    assert sent[0] == b"\0"


async def test_a_follower_that_has_gone(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor is not at fault: its log has no traceback of that."""
    faults: list[object] = []
    monkeypatch.setattr(requests, "fault", lambda *what: faults.append(what))

    async def arrived(*_: object) -> None:
        await trio.lowlevel.checkpoint()

    containers: Any = SimpleNamespace(
        arrivals=SimpleNamespace(of=arrived),
        live=lambda *_: SimpleNamespace(log=growing.followed),
    )
    retirement: Any = SimpleNamespace(cut_off=nullcontext)
    nothing: Any = None
    ours, theirs = trio.socket.socketpair()
    theirs.close()
    with ours:
        fields = [b"follow", b"c", b"log", b"0"]
        request = requests.ClientRequest(containers, retirement, nothing, ours, fields, [])
        assert await request.answer() == b""
    assert not faults


def terminal() -> tuple[int, int]:
    """A terminal in raw mode: its master, and the other end."""
    master, end = os.openpty()
    tty.setraw(end)
    return master, end


class Called:
    """The descriptors of a `run`: "t" for a terminal, "p" a pipe, "s" a socket, "f" a file."""

    def __init__(self, kinds: str) -> None:
        self._ours: list[int] = []
        fds = []
        for kind in kinds:
            if kind == "s":
                our, its = (end.detach() for end in socket.socketpair())
            elif kind == "f":
                our, its = (os.open(os.devnull, os.O_RDWR) for _ in range(2))
            else:
                our, its = terminal() if kind == "t" else os.pipe()
            self._ours.append(our)
            fds.append(its)
        self.stdio = Stdio(fds, terminal=False)

    def close(self) -> None:
        self.stdio.close()
        for fd in self._ours:
            os.close(fd)


def kind(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}").partition(":")[0]


@pytest.mark.parametrize(
    ("kinds", "replaced", "written"),
    [
        ("ttt", "ntt", b"onetwo"),
        ("ptt", "ptt", b"onetwo"),
        ("ppp", "ptt", b"onetwo"),  # where somebody reads to the end of file
        ("sss", "ntt", b"onetwo"),
        ("ftf", "ftf", b"one"),
        ("tft", "nft", b"two"),
    ],
)
async def test_what_would_go_to_a_terminal_is_kept(
    tmp_path: Path, kinds: str, replaced: str, written: bytes
) -> None:
    called = Called(kinds)
    before = called.stdio.fds
    kept = CapturedOutput(str(tmp_path / "output"), 16 << 20, print)
    assert await kept.connect(called.stdio, terminal=False)
    assert (tmp_path / "output").stat().st_mode & 0o777 == 0o600
    for number, (old, new) in enumerate(zip(before, called.stdio.fds, strict=True)):
        if replaced[number] in "pf" and replaced[number] == kinds[number]:
            assert new == old
        else:
            assert not os.isatty(new)
            assert not os.get_inheritable(new)
            assert kind(new) == ("/dev/null" if replaced[number] == "n" else "pipe")
    assert called.stdio.terminal is None
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kept.capture)
            os.write(called.stdio.fds[1], b"one")
            await trio.testing.wait_all_tasks_blocked()
            os.write(called.stdio.fds[2], b"two")
            await kept.write(b"typed")  # there is no terminal to type at
            kept.resize(1, 1)
            called.close()
    assert (tmp_path / "output").read_bytes() == written
    assert kept.output.ended


@pytest.mark.parametrize("kinds", ["pff", "tff"])
async def test_what_goes_elsewhere_is_not_kept(tmp_path: Path, kinds: str) -> None:
    called = Called(kinds)
    kept = CapturedOutput(str(tmp_path / "output"), 16 << 20, print)
    before = called.stdio.fds
    assert not await kept.connect(called.stdio, terminal=False)
    assert called.stdio.fds[1:] == before[1:]
    assert not os.isatty(called.stdio.fds[0])
    assert os.listdir(tmp_path) == []
    called.close()


async def test_what_was_written_since(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the second, also when the limit has taken the first of it, and not a byte is changed."""
    (tmp_path / "c1").mkdir()
    called, now = Called("ppp"), 0.0
    kept = CapturedOutput(str(tmp_path / "c1" / "output"), 1, lambda _: None)  # 64 KiB twice
    await kept.connect(called.stdio, terminal=False)
    monkeypatch.setattr("time.time", lambda: now)
    pieces = {second: b"%d\n" % second * 6000 for second in (1000, 2000, 3000, 4000, 5000)}
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kept.capture)
            for second, content in pieces.items():
                now = second + 0.5
                for half in (content[:15000], content[15000:]):
                    await trio.to_thread.run_sync(os.write, called.stdio.fds[1], half)
                    await trio.testing.wait_all_tasks_blocked()
            called.close()
    logs = ["--root", str(tmp_path), "logs", "c1", "--since"]
    for since, first in (("4000", 4000), ("4000.7", 4000), ("4001", 5000), ("5001", 6000)):
        assert program.run([*logs, since]) == 0
        expected = b"".join(text for second, text in pieces.items() if second >= first)
        assert capfd.readouterr().out == expected.decode()
    for until, last in (("4000", 4000), ("4000.7", 4000), ("4999", 4000), ("9000", 5000)):
        assert program.run([*logs, "4000", "--until", until]) == 0
        expected = b"".join(text for second, text in pieces.items() if 4000 <= second <= last)
        assert capfd.readouterr().out == expected.decode()
    assert program.run([*logs, "500", "--until", "4000", "--tail", "2"]) == 0
    assert capfd.readouterr().out == "4000\n4000\n"
    assert program.run([*logs, "5000", "--until", "4000"]) == 0
    assert capfd.readouterr().out == ""
    assert program.run([*logs, "4000", "-t"]) == 0
    stamped = "1970-01-01T01:06:40Z 4000\n" * 6000 + "1970-01-01T01:23:20Z 5000\n" * 6000
    assert capfd.readouterr().out == stamped
    assert program.run([*logs, "500"]) == 0
    everything = capfd.readouterr()
    assert program.run(logs[:-1]) == 0
    assert capfd.readouterr() == everything
    assert "bytes are gone" in everything.err


async def test_a_terminal_of_ours(tmp_path: Path) -> None:
    called = Called("ptp")
    kept = CapturedOutput(str(tmp_path / "output"), 16 << 20, print)
    assert await kept.connect(called.stdio, terminal=True)
    assert kept.terminal
    fds = called.stdio.fds
    assert len({os.ttyname(fd) for fd in fds}) == 1
    assert called.stdio.terminal == fds[0]
    tty.setraw(fds[0])
    kept.resize(1, 1)  # before there is anything
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kept.capture)
            os.write(fds[1], b"out\n")
            os.write(fds[2], b"err\n")
            await trio.testing.wait_all_tasks_blocked()
            await kept.write(b"typed")
            assert os.read(fds[0], 100) == b"typed"
            kept.resize(24, 80)
            assert os.get_terminal_size(fds[0]) == (80, 24)
            called.close()
    assert (tmp_path / "output").read_bytes() == b"out\nerr\n"
    assert kept.output.ended


async def test_after_its_end_nobody_else_s_terminal_is_touched(tmp_path: Path) -> None:
    called = Called("ppp")
    kept = CapturedOutput(str(tmp_path / "output"), 16 << 20, print)
    await kept.connect(called.stdio, terminal=True)
    called.close()
    await kept.capture()
    others = [terminal() for _ in range(4)]  # one of them has the number now
    try:
        kept.resize(77, 77)
        await kept.write(b"typed")
        for pair in others:
            for fd in pair:
                size = fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8))
                assert struct.unpack("HHHH", size)[:2] == (0, 0)
    finally:
        for pair in others:
            for fd in pair:
                os.close(fd)


async def test_several_type_at_the_same_time(tmp_path: Path) -> None:
    called = Called("ppp")
    kept = CapturedOutput(str(tmp_path / "output"), 16 << 20, print)
    await kept.connect(called.stdio, terminal=True)
    end = called.stdio.fds[0]
    tty.setraw(end)
    os.set_blocking(end, False)
    got = b""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kept.capture)
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as writers:
                for letter in (b"a", b"b"):
                    writers.start_soon(kept.write, letter * 50_000)
                while len(got) < 100_000:
                    await trio.lowlevel.wait_readable(end)
                    got += os.read(end, 65536)
            called.close()
    assert got in (b"a" * 50_000 + b"b" * 50_000, b"b" * 50_000 + b"a" * 50_000)


@pytest.mark.parametrize("is_terminal", [True, False])
async def test_without_descriptors_nothing_is_left_of_half_a_connection(
    tmp_path: Path, is_terminal: bool
) -> None:
    called = Called("ttt")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers = [os.open("/dev/null", os.O_RDONLY)]
    while fillers[-1] < max(map(int, descriptors())):  # no number below it is free
        fillers.append(os.dup(fillers[0]))
    kept = CapturedOutput(str(tmp_path / "output"), 16 << 20, print)
    before = descriptors()
    failures = 0
    for more in range(1, 9):
        resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + more, hard))
        try:
            await kept.connect(called.stdio, terminal=is_terminal)
            break
        except OSError:
            failures += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert descriptors() == before
    assert failures == 7
    called.close()
    await kept.capture()
    for filler in fillers:
        os.close(filler)


async def test_another_supervisor_goes_on(tmp_path: Path) -> None:
    """What one has read and not written, or not read, the next one writes; and nothing twice."""
    path = str(tmp_path / "output")
    called = Called("ppp")
    first = CapturedOutput(path, 16 << 20, print)
    await first.connect(called.stdio, terminal=False)
    held: dict[str, int] = {}

    def hold(fds: dict[str, int]) -> None:
        held.update({name: os.dup(fd) for name, fd in fds.items()})

    first.keep(hold)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.capture)
        os.write(called.stdio.fds[1], b"one\n")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert (tmp_path / "output").read_bytes() == b"one\n"
    with (tmp_path / "output").open("r+b") as file:
        file.truncate(2)  # as if it had been killed while it wrote
    os.write(called.stdio.fds[1], b"two\n")
    second = CapturedOutput(path, 16 << 20, print)
    second.take_over(held, terminal=False)
    called.close()
    await second.capture()
    assert (tmp_path / "output").read_bytes() == b"one\ntwo\n"
