"""A file system over an anchor's root; a program instead of a shim answers."""

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from scrun.core import namespaces as ns
from scrun.core.errors import EngineError
from scrun.model.states import exited
from scrun.supervisor.containers import live_files
from scrun.supervisor.containers.live_files import LiveFiles
from scrun.supervisor.contracts.program import SERVED, Program
from scrun.supervisor.core.threads import in_last_thread
from scrun.supervisor.nodes.ends import Gone
from scrun.supervisor.wire.fuse import OUT
from tests import CHECKOUT
from tests.component.supervisor.containers.test_view import anchor as anchor
from tests.harness.processes import descriptors
from tests.harness.wait import wait_until

T = TypeVar("T")
SERVES = """
import sys
sys.path.insert(0, sys.argv[1])
from scrun.supervisor.shim.live_files import LiveFiles
LiveFiles(sys.argv[2]).answer_all(0, 1)
"""


WRITES = """
import os, sys
sys.path.insert(0, sys.argv[1])
from scrun.core import namespaces as ns
ns.enter(os.open(f"/proc/{sys.argv[2]}/ns/mnt", os.O_RDONLY), ns.NEW_MOUNT)
fd = os.open("/etc/big", os.O_WRONLY | os.O_CREAT)
for _ in range(200):
    os.write(fd, bytes(1 << 15))
print("written", flush=True)
sys.stdin.readline()
os.write(fd, bytes(1 << 15))
print("one", flush=True)
sys.stdin.readline()
try:
    for _ in range(200):
        os.write(fd, bytes(1 << 15))
except OSError as error:
    print(error.errno, flush=True)
"""


class Journal:
    """What is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, level: str, text: str) -> None:
        self.lines.append(text)


class Job:
    """Has a program answer from a directory.

    Attributes:
        begun: How many programs have begun.
        answers: Whether the shim answers.
        forged: Bytes that come before the first answer.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.begun = 0
        self.answers = True
        self.forged = b""
        self.failure = ""
        self.process: trio.Process | None = None

    async def inspect(self, script: Callable[[str], str]) -> list[object]:
        if not self.answers:
            await trio.sleep_forever()
        return []

    async def session(self, program: Program) -> Any:
        if self.failure:
            raise EngineError(self.failure)
        assert program.files == SERVED
        self.begun += 1
        return Session(self, program)


class Session:
    """One run of the program."""

    def __init__(self, job: Job, program: Program) -> None:
        self._job, self._program = job, program

    async def run(self) -> object:
        ours, theirs = trio.socket.from_stdlib_socket, socket.socketpair()
        mine, its = theirs
        ends = self._program.ends
        assert ends is not None
        words = [sys.executable, "-I", "-S", "-c", SERVES, str(CHECKOUT), str(self._job.root)]
        process = await trio.lowlevel.open_process(words, stdin=its, stdout=its)
        self._job.process = process
        its.close()
        sock = ours(mine)

        async def feed() -> None:
            async with ends.source() as source:
                room = memoryview(bytearray(1 << 18))
                with suppress(OSError):  # it was killed
                    while count := await source.read_into(room):
                        data = room[:count]
                        while data:
                            data = data[await sock.send(data) :]
                    sock.shutdown(socket.SHUT_WR)

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(feed)
                async with ends.sink("stdout") as sink:
                    try:
                        if self._job.forged:
                            await sink.write(memoryview(self._job.forged))
                        while data := await sock.recv(1 << 16):
                            await sink.write(memoryview(data))
                    except (Gone, OSError):
                        return exited(3)
                    finally:
                        nursery.cancel_scope.cancel()
        finally:
            sock.close()
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
        return exited(0)


def within(pid: int, call: Callable[[], T]) -> T:
    """Call something in the mount namespace of an anchor, as an engine does. Blocks."""

    def enter() -> T:
        fd = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
        ns.unshare(ns.NEW_ROOT)
        ns.enter(fd, ns.NEW_MOUNT)
        os.close(fd)
        return call()

    return in_last_thread(enter)


def mounted(pid: int) -> str:
    return Path(f"/proc/{pid}/mountinfo").read_text()


async def see(pid: int, call: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(within, pid, call, abandon_on_cancel=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "root"
    for name in ("proc", "etc"):
        (place / name).mkdir(parents=True)
    (place / "etc" / "file").write_text("the container's\n")
    return place


@asynccontextmanager
async def served(pid: int, job: Job) -> AsyncIterator[Journal]:
    journal = Journal()
    files = LiveFiles(job, journal)  # type: ignore[arg-type]
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(files.serve)
            call = lambda: live_files.attach(files.tree, pid, lambda: True)  # noqa: E731
            await trio.to_thread.run_sync(call)
            files.is_attached()
            yield journal
            nursery.cancel_scope.cancel()
    finally:
        files.close()


async def test_files_and_the_anchor_s_own_processes(anchor: int, root: Path) -> None:
    job = Job(root)
    async with served(anchor, job):
        assert job.begun == 0
        read = Path("/etc/file").read_text
        assert await see(anchor, read) == "the container's\n"
        assert await see(anchor, lambda: sorted(os.listdir("/"))) == ["etc", "proc"]
        numbers = lambda: [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: E731
        assert await see(anchor, numbers) == ["1"]
        await see(anchor, lambda: Path("/etc/new").write_bytes(b"x" * 3_000_000))
        assert (root / "etc" / "new").read_bytes() == b"x" * 3_000_000
        assert job.begun == 1
    with pytest.raises(OSError, match=r"connect|abort"):
        await see(anchor, read)


async def test_a_program_ends_when_nobody_asks_and_the_next_one_goes_on(
    anchor: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_files, "_IDLE", 0.3)
    job = Job(root)
    async with served(anchor, job) as journal:
        for count in (1, 2, 3):
            assert await see(anchor, Path("/etc/file").read_text) == "the container's\n"
            assert job.begun == count
            assert job.process
            with trio.fail_after(5):
                await job.process.wait()
            await trio.sleep(0.1)
        assert journal.lines == []


async def test_who_does_not_answer(anchor: int, root: Path) -> None:
    """What waits fails within five seconds, new requests at once, until it goes on."""
    job = Job(root)
    async with served(anchor, job):
        assert await see(anchor, Path("/etc/file").read_text) == "the container's\n"
        job.answers = False
        assert job.process
        job.process.send_signal(19)
        for most in (5.5, 0.5):
            begun = time.monotonic()
            with pytest.raises(OSError, match="Input/output") as refused:
                await see(anchor, lambda: os.listdir("/etc"))
            assert refused.value.errno == errno.EIO
            assert time.monotonic() - begun < most
        job.process.send_signal(18)
        with trio.fail_after(5):
            while True:
                try:
                    assert await see(anchor, lambda: os.listdir("/etc")) == ["file"]
                except OSError:
                    await trio.sleep(0.1)
                else:
                    break


async def test_a_program_that_is_slow_is_waited_for(anchor: int, root: Path) -> None:
    """Its shim answers."""
    job = Job(root)
    async with served(anchor, job), trio.open_nursery() as nursery:
        assert await see(anchor, Path("/etc/file").read_text) == "the container's\n"
        process = job.process
        assert process
        process.send_signal(19)

        async def go_on() -> None:
            await trio.sleep(6)
            process.send_signal(18)

        nursery.start_soon(go_on)
        assert await see(anchor, Path("/etc/file").read_text) == "the container's\n"


async def test_a_program_that_is_killed(anchor: int, root: Path) -> None:
    """Another one begins, and takes no file for another one."""
    job = Job(root)
    async with served(anchor, job):
        assert await see(anchor, Path("/etc/file").read_text) == "the container's\n"
        assert job.process
        job.process.kill()
        await trio.sleep(0.3)
        assert await see(anchor, Path("/etc/file").read_text) == "the container's\n"
        assert job.begun == 2


async def test_no_program(anchor: int, root: Path) -> None:
    job = Job(root)
    job.failure = "the shim has gone"
    async with served(anchor, job) as journal:
        with pytest.raises(OSError, match="Input/output"):
            await see(anchor, Path("/etc/file").read_text)
        assert [line for line in journal.lines if "the shim has gone" in line]


@pytest.mark.covers("security files of a running container that an engine sees")
@pytest.mark.parametrize("unique", [0, 2, 1 << 40])
async def test_an_answer_that_nobody_waits_for(anchor: int, root: Path, unique: int) -> None:
    """It would be a notification, or end another request."""
    job = Job(root)
    job.forged = OUT.pack(OUT.size, 0, unique) + OUT.pack(OUT.size + 8, -5, unique) + bytes(8)
    async with served(anchor, job):
        assert await see(anchor, Path("/etc/file").read_text) == "the container's\n"


@pytest.mark.covers("security files of a running container that an engine sees")
@pytest.mark.parametrize("forged", [b"\0" * 64, b"\xff" * 64], ids=["short", "long"])
async def test_what_is_no_answer(anchor: int, root: Path, forged: bytes) -> None:
    job = Job(root)
    job.forged = forged
    async with served(anchor, job):
        with pytest.raises(OSError, match="Input/output"), trio.fail_after(10):
            await see(anchor, Path("/etc/file").read_text)


def write(path: str, pieces: int, piece: int = 1 << 15) -> None:
    """Write as podman does."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        for number in range(pieces):
            os.write(fd, b"%07d\n" % number * (piece // 8))
    finally:
        os.close(fd)


async def test_a_large_file_is_written_ahead_into_room_that_is_reserved(
    anchor: int, root: Path
) -> None:
    job = Job(root)
    async with served(anchor, job):
        await see(anchor, lambda: write("/etc/big", 1500))
        found = (root / "etc" / "big").read_bytes()
        assert len(found) == 1500 << 15
        assert found[-8:] == b"0001499\n"
        most = len(found) + (1 << 20)

        def is_back() -> bool:
            return os.stat(root / "etc" / "big").st_blocks * 512 < most

        back = partial(wait_until, "what was too much", is_back, 10)
        await trio.to_thread.run_sync(back)  # the kernel tells of the end after close(2)


@pytest.mark.parametrize("size", ["8m", "40m"])
async def test_a_full_disk_is_told_by_write(anchor: int, root: Path, size: str) -> None:
    """Not by close(2): podman does not look at that."""
    (root / "small").mkdir()
    options = f"size={size}"
    ns.mount("none", str(root / "small"), "tmpfs", 0, options)
    try:
        async with served(anchor, Job(root)):
            with pytest.raises(OSError, match="No space left"):
                await see(anchor, lambda: write_only("/small/big", 1500))
            assert 7 << 20 < (root / "small" / "big").stat().st_size <= int(size[:-1]) << 20
    finally:
        ns.detach(str(root / "small"))


def write_only(path: str, pieces: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    failed = None
    for _ in range(pieces):
        try:
            os.write(fd, bytes(1 << 15))
        except OSError as error:
            failed = error
            break
    try:
        os.close(fd)
    except OSError as error:
        raise AssertionError("only at the end") from error
    if failed:
        raise failed


async def test_what_nobody_waits_for_fails_later(anchor: int, root: Path) -> None:
    """The program is killed while pieces are on their way: the next one tells.

    The writer is another process: a child of ours would wait for us when it closes the file.
    """
    job = Job(root)
    async with served(anchor, job):
        words = [sys.executable, "-I", "-S", "-c", WRITES, str(CHECKOUT), str(anchor)]
        writer = await trio.lowlevel.open_process(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert writer.stdin
            assert writer.stdout
            assert await writer.stdout.receive_some() == b"written\n"
            assert job.process
            job.process.send_signal(19)
            await writer.stdin.send_all(b"one\n")
            with trio.fail_after(1):
                assert await writer.stdout.receive_some() == b"one\n"  # there is room
            job.process.kill()
            await trio.sleep(0.5)
            await writer.stdin.send_all(b"more\n")
            with trio.fail_after(10):
                assert await writer.stdout.receive_some() in (b"%d\n" % errno.EIO, b"9\n")
        finally:
            writer.kill()
            await writer.wait()


async def test_a_successor_mounts_another_one(anchor: int, root: Path) -> None:
    job = Job(root)
    for _ in range(3):
        async with served(anchor, job):
            assert await see(anchor, Path("/etc/file").read_text) == "the container's\n"
            assert mounted(anchor).count(" fuse ") == 1


def test_where_there_is_no_device(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.setattr(live_files, "DEVICE", "/dev/none")
    with pytest.raises(FileNotFoundError):
        LiveFiles(Job(root), Journal())  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    yield
    assert "/dev/fuse" not in descriptors().values()
