"""A file system over an anchor's root; a program instead of a shim answers."""

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
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
from scrun.supervisor.contracts.program import SERVED, Program, rootfs
from scrun.supervisor.core.threads import in_last_thread
from scrun.supervisor.nodes.ends import Gone
from scrun.supervisor.staging import live_mounts
from scrun.supervisor.wire.fuse import GETATTR, IN, LOOKUP, OUT, ROOT, STATFS
from tests import CHECKOUT
from tests.component.supervisor.containers.test_view import anchor as anchor
from tests.harness.processes import descriptors
from tests.harness.wait import wait_until

T = TypeVar("T")
SERVES = """
import sys
sys.path.insert(0, sys.argv[1])
from scrun.supervisor.shim.live_files import LiveFiles
%s
LiveFiles(sys.argv[2]).answer_all(0, 1)
"""

LIES = """
import struct
from scrun.supervisor.wire import fuse
honest, said = LiveFiles.answer, []
def answer(self, request):
    true = honest(self, request)
    _, code, unique, number, *_ = fuse.IN.unpack_from(request)
    name = bytes(request[fuse.IN.size:])
    def reply(error, body=b""):
        return fuse.OUT.pack(fuse.OUT.size + len(body), error, unique) + body
    body = true[fuse.OUT.size:]
    lie = %s
    return lie or true
LiveFiles.answer = answer
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


HOLDS = """
import os, sys
sys.path.insert(0, sys.argv[1])
from scrun.core import namespaces as ns
ns.enter(os.open(f"/proc/{sys.argv[2]}/ns/mnt", os.O_RDONLY), ns.NEW_MOUNT)
fd = os.open("/etc/file", os.O_RDONLY)
print("open", flush=True)
sys.stdin.readline()
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
        lie: An expression of Python: the answer instead of a true one, or None.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.begun = 0
        self.answers = True
        self.forged = b""
        self.lie = "None"
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
        serves = SERVES % (LIES % self._job.lie)
        words = [sys.executable, "-I", "-S", "-c", serves, str(CHECKOUT), str(self._job.root)]
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
            call = lambda: live_mounts.attach(files.tree, pid, lambda: True)  # noqa: E731
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


PROC_IS_ANOTHER = (
    "reply(0, (99).to_bytes(8, 'little') + body[8:]) if name.startswith(b'proc')"
    " and code == fuse.LOOKUP else None"
)
PROC_IS_NOT_THERE = "reply(-2) if name.startswith(b'proc') else None"
PROC_IS_ANOTHER_IN_A_LIST = (
    "reply(0, b''.join((99).to_bytes(8, 'little') + body[at + 8:at + 160]"
    " for at in range(0, len(body) - 159, 160)))"
    " if code == fuse.READDIRPLUS and number == 1 else None"
)
PROC_IS_A_FILE = (
    "reply(0, (2).to_bytes(8, 'little') + body[8:])"
    " if code == fuse.LOOKUP and name.startswith(b'file') else None"
)
PROC_IS_A_FILE_IN_A_LIST = (
    "reply(0, (2).to_bytes(8, 'little') + body[8:])"
    " if code == fuse.READDIRPLUS and number > 2 and body else None"
)


@pytest.mark.covers("security files of a running container that an engine sees")
@pytest.mark.parametrize(
    "lie",
    [
        PROC_IS_ANOTHER, PROC_IS_NOT_THERE, PROC_IS_ANOTHER_IN_A_LIST, PROC_IS_A_FILE,
        PROC_IS_A_FILE_IN_A_LIST,
    ],
)  # fmt: skip
async def test_a_node_cannot_undo_the_mount_of_proc(anchor: int, root: Path, lie: str) -> None:
    """Else a program there would take what the node says of /proc/self for the kernel's word."""
    job = Job(root)
    job.lie = lie
    async with served(anchor, job):
        calls: tuple[Callable[[], object], ...] = (
            lambda: os.listdir("/"),
            lambda: [one.stat() for one in os.scandir("/")],
            lambda: [one.stat() for one in os.scandir("/etc")],
            lambda: os.stat("/etc/file"),
            lambda: os.stat("/proc"),
            lambda: os.stat("/proc/1"),
        )
        for call in calls * 2:
            await trio.sleep(0.03)  # then the kernel asks again
            with suppress(OSError):
                await see(anchor, call)
            assert mounted(anchor).count(" /proc ") == 2
        assert await see(anchor, lambda: "1" in os.listdir("/proc"))


@pytest.mark.covers("security files of a running container that an engine sees")
@pytest.mark.parametrize("error", [5, -512, -(2**31), 2**31 - 1])
async def test_an_error_that_is_none(anchor: int, root: Path, error: int) -> None:
    """The kernel would refuse the answer, and who waits for it could not even be killed."""
    job = Job(root)
    job.lie = f"reply({error}) if name.startswith(b'file') else None"
    async with served(anchor, job):
        with pytest.raises(OSError, match="Input/output"), trio.fail_after(10):
            await see(anchor, Path("/etc/file").read_text)


@pytest.mark.covers("security files of a running container that an engine sees")
@pytest.mark.parametrize("kind", ["WRITE", "OPEN", "CREATE", "FALLOCATE", "LOOKUP", "READDIRPLUS"])
async def test_answers_that_are_too_short(anchor: int, root: Path, kind: str) -> None:
    """Whoever asked is told, and the next one is served."""
    job = Job(root)
    job.lie = f"said.append(1) or reply(0) if code == fuse.{kind} and len(said) < 300 else None"
    async with served(anchor, job):
        with suppress(OSError), trio.fail_after(10):
            await see(anchor, lambda: write("/etc/big", 100))
        with suppress(OSError), trio.fail_after(10):
            await see(anchor, lambda: os.listdir("/etc"))
        assert job.process
        job.process.kill()
        job.lie = "None"
        await trio.sleep(0.3)
        with trio.fail_after(10):
            assert "file" in await see(anchor, lambda: os.listdir("/etc"))


@pytest.mark.covers("security files of a running container that an engine sees")
@pytest.mark.parametrize("kind", ["WRITE", "FALLOCATE"])
async def test_an_answer_to_what_nobody_waits_for_is_too_short(
    anchor: int, root: Path, kind: str
) -> None:
    job = Job(root)
    job.lie = (
        f"said.append(1) or reply(0) if code == fuse.{kind} and len(said) > 60 else said.append(1)"
    )
    async with served(anchor, job):
        with suppress(OSError), trio.fail_after(10):
            await see(anchor, lambda: write("/etc/big", 300))
        with trio.fail_after(10):
            assert "file" in await see(anchor, lambda: os.listdir("/etc"))


@pytest.mark.covers("security files of a running container that an engine sees")
async def test_words_instead_of_answers(
    anchor: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that says something all the time has to answer after a minute, too."""
    monkeypatch.setattr(live_files, "_LONGEST", 3.0)
    job = Job(root)
    job.lie = (
        "[__import__('time').sleep(0.2) or __import__('os').write(1, fuse.OUT.pack(16, 0, 1))"
        " for _ in range(50)] and None if name.startswith(b'file') else None"
    )
    async with served(anchor, job):
        begun = time.monotonic()
        with pytest.raises(OSError, match="Input/output"), trio.fail_after(20):
            await see(anchor, Path("/etc/file").read_text)
        assert time.monotonic() - begun < 8


@pytest.mark.covers("security files of a running container that an engine sees")
async def test_nothing_of_it_is_executed(anchor: int, root: Path) -> None:
    """Nor loaded, as modules of glibc's for names of users would be."""
    program = root / "etc" / "program"
    program.write_text("#!/bin/true\n")
    program.chmod(0o755)

    def execute() -> bool:
        return os.access("/etc/program", os.X_OK)

    async with served(anchor, Job(root)):
        assert not await see(anchor, execute)


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


async def talking(
    script: str, anchor: int
) -> tuple[trio.Process, trio.abc.SendStream, trio.abc.ReceiveStream]:
    """Start a process that uses the files as it is told, with its standard input and output."""
    words = [sys.executable, "-I", "-S", "-c", script, str(CHECKOUT), str(anchor)]
    pipe = subprocess.PIPE
    process = await trio.lowlevel.open_process(words, stdin=pipe, stdout=pipe)
    assert process.stdin
    assert process.stdout
    return process, process.stdin, process.stdout


async def test_what_nobody_waits_for_fails_later(anchor: int, root: Path) -> None:
    """The program is killed while pieces are on their way: the next one tells.

    The writer is another process: a child of ours would wait for us when it closes the file.
    """
    job = Job(root)
    async with served(anchor, job):
        writer, tells, hears = await talking(WRITES, anchor)
        try:
            assert await hears.receive_some() == b"written\n"
            assert job.process
            job.process.send_signal(19)
            await tells.send_all(b"one\n")
            with trio.fail_after(1):
                assert await hears.receive_some() == b"one\n"  # there is room
            job.process.kill()
            await trio.sleep(0.5)
            await tells.send_all(b"more\n")
            with trio.fail_after(10):
                assert await hears.receive_some() in (b"%d\n" % errno.EIO, b"9\n")
        finally:
            writer.kill()
            await writer.wait()


async def test_a_program_is_killed_while_much_waits_for_it(anchor: int, root: Path) -> None:
    """More than is read from the kernel at a time: the next one is asked all the same."""
    job = Job(root)
    async with AsyncExitStack() as later, served(anchor, job):
        writer, tells, hears = await talking(WRITES, anchor)
        later.push_async_callback(writer.wait)
        try:
            assert await hears.receive_some() == b"written\n"
            assert job.process
            job.process.send_signal(19)
            await tells.send_all(b"one\nmore\n")
            await trio.sleep(1)
            job.process.kill()
            with trio.fail_after(10):
                assert await see(anchor, Path("/etc/file").read_text) == "the container's\n"
        finally:
            writer.kill()


async def test_a_file_of_a_killed_program_is_closed(
    anchor: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one ends all the same when nobody asks."""
    monkeypatch.setattr(live_files, "_IDLE", 0.3)
    job = Job(root)
    async with served(anchor, job):
        holder, tells, hears = await talking(HOLDS, anchor)
        try:
            assert await hears.receive_some() == b"open\n"
            assert job.process
            job.process.kill()
            await trio.sleep(0.3)
            assert await see(anchor, lambda: os.listdir("/etc")) == ["file"]
            await tells.send_all(b"close\n")
        finally:
            await holder.wait()
        with trio.fail_after(5):
            await job.process.wait()


async def test_a_successor_mounts_another_one(anchor: int, root: Path) -> None:
    job = Job(root)
    for _ in range(3):
        async with served(anchor, job):
            assert await see(anchor, Path("/etc/file").read_text) == "the container's\n"
            assert mounted(anchor).count(" fuse ") == 1


async def test_what_is_asked_of_each_mount_begins_no_program(root: Path) -> None:
    files = LiveFiles(Job(root), Journal(), rootfs(()))  # type: ignore[arg-type]
    files.is_attached(os.lstat("/"))

    def waits(*codes: int) -> int:
        for code in codes:
            files._take(IN.pack(IN.size, code, 2 * code, ROOT, 0, 0, 0, 0))
        return len(files._waiting)

    try:
        assert waits(STATFS, GETATTR) == 0
        assert waits(LOOKUP) == 1
        assert waits(STATFS, GETATTR) == 3  # the program has begun, and knows better
    finally:
        files.close()


def test_where_there_is_no_device(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.setattr(live_files, "DEVICE", "/dev/none")
    with pytest.raises(FileNotFoundError):
        LiveFiles(Job(root), Journal())  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    yield
    assert "/dev/fuse" not in descriptors().values()
