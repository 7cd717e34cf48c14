"""A caller's descriptors of every kind: bytes pass, and nothing about them changes."""

import fcntl
import os
import pty
import socket
import subprocess
import sys
import threading
import tty
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.nodes import ends
from scrun.supervisor.nodes.ends import Gone, Sink, is_null, sink, source
from tests import CHECKOUT
from tests.harness import users
from tests.harness.peer import soon

ENV = ChildEnv({"PATH": users.PATH})
CONTENT = bytes(range(256)) * 2048
KINDS = ("pipe", "fifo", "stream", "datagrams", "terminal", "others")


pytestmark = pytest.mark.usefixtures("no_descriptor_stays")


def pair(kind: str, tmp_path: Path) -> tuple[int, int]:
    """Where to read and where to write."""
    if kind in ("pipe", "others"):
        return os.pipe()
    if kind == "fifo":
        os.mkfifo(tmp_path / "fifo")
        readable = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        writable = os.open(tmp_path / "fifo", os.O_WRONLY)
        os.set_blocking(readable, True)
        return readable, writable
    if kind == "terminal":
        master, slave = pty.openpty()
        tty.setraw(slave)
        return master, slave
    which = socket.SOCK_STREAM if kind == "stream" else socket.SOCK_SEQPACKET
    one, other = socket.socketpair(socket.AF_UNIX, which)
    return one.detach(), other.detach()


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a descriptor one of another user, if its kind is `others`."""

    def take(kind: str) -> None:
        if kind == "others":

            def refuse(fd: int, mode: int) -> int:
                raise PermissionError(13, "Permission denied")

            monkeypatch.setattr(ends, "open_again", refuse)

    return take


async def read_all(fd: int, size: int) -> bytes:
    def read() -> bytes:
        got = b""
        while len(got) < size:
            got += os.read(fd, 1 << 20)
        return got

    return await trio.to_thread.run_sync(read)


def write_all(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest[:16384]) :]


async def write_on(found: Sink) -> None:
    while True:  # a `cat` notices only after the first write
        await found.write(memoryview(b"x" * 1000))


def flags(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_GETFL)


@pytest.mark.parametrize("kind", KINDS)
async def test_read(kind: str, tmp_path: Path, theirs: Callable[[str], None]) -> None:
    readable, writable = pair(kind, tmp_path)
    if kind == "terminal":
        readable, writable = writable, readable  # what was typed at its master
    theirs(kind)
    before = flags(readable)
    got = b""
    room = memoryview(bytearray(1 << 18))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, write_all, writable, CONTENT)
        async with source(readable, ENV) as found:
            while len(got) < len(CONTENT):
                count = await found.read_into(room)
                got += room[:count]
                assert flags(readable) == before
            os.close(writable)
            assert await found.read_into(room) == 0
    assert got == CONTENT
    assert flags(readable) == before
    os.close(readable)


@pytest.mark.parametrize("kind", KINDS)
async def test_write(kind: str, tmp_path: Path, theirs: Callable[[str], None]) -> None:
    readable, writable = pair(kind, tmp_path)
    theirs(kind)
    before = flags(writable)
    got: list[bytes] = []
    async with trio.open_nursery() as nursery:

        async def read() -> None:
            got.append(await read_all(readable, len(CONTENT)))

        async with sink(writable, ENV) as found:
            rest = memoryview(CONTENT)
            piece = 16384 if kind == "datagrams" else len(rest)
            while count := found.try_write(rest[:piece]):
                rest = rest[count:]
            assert 0 < len(rest) < len(CONTENT)  # it did not wait
            assert flags(writable) == before
            nursery.start_soon(read)
            while rest:
                rest = rest[await found.write(rest[:piece]) :]
        assert flags(writable) == before
    assert got == [CONTENT]
    for fd in (readable, writable):
        os.close(fd)


@pytest.mark.parametrize("kind", KINDS)
async def test_cancelled(kind: str, tmp_path: Path, theirs: Callable[[str], None]) -> None:
    readable, writable = pair(kind, tmp_path)
    theirs(kind)
    with trio.move_on_after(0.1) as scope:
        async with source(writable if kind == "terminal" else readable, ENV) as found:
            await found.read_into(memoryview(bytearray(10)))
    assert scope.cancelled_caught
    with trio.move_on_after(0.1) as scope:
        async with sink(writable, ENV) as to:
            while True:
                await to.write(memoryview(bytes(10_000)))
    assert scope.cancelled_caught
    for fd in (readable, writable):
        os.close(fd)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "terminal"])
async def test_a_reader_that_has_gone(
    kind: str, tmp_path: Path, theirs: Callable[[str], None]
) -> None:
    readable, writable = pair(kind, tmp_path)
    theirs(kind)
    os.close(readable)
    async with sink(writable, ENV) as found:
        with trio.fail_after(5), pytest.raises(Gone) as caught:
            await write_on(found)
        assert str(caught.value) == ""
    os.close(writable)


async def test_a_terminal_that_was_hung_up() -> None:
    master, slave = pty.openpty()
    os.close(master)
    async with source(slave, ENV) as found:
        assert await found.read_into(memoryview(bytearray(10))) == 0
    async with sink(slave, ENV) as to:
        with pytest.raises(Gone):
            await to.write(memoryview(b"x"))
    os.close(slave)


async def test_a_terminal_that_is_hung_up() -> None:
    master, slave = pty.openpty()
    async with source(slave, ENV) as found, trio.open_nursery() as nursery:

        async def hang_up() -> None:
            await trio.sleep(0.05)
            os.close(master)

        nursery.start_soon(hang_up)
        with trio.fail_after(5):
            assert await found.read_into(memoryview(bytearray(10))) == 0
    os.close(slave)


def test_it_does_not_become_our_terminal() -> None:
    master, slave = pty.openpty()
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import trio\n"
        "from scrun.supervisor.children.processes import ChildEnv\n"
        "from scrun.supervisor.nodes.ends import sink, source\n"
        "async def main():\n"
        "    fd = int(sys.argv[2])\n"
        "    async with source(fd, ChildEnv({})), sink(fd, ChildEnv({})):\n"
        "        print(open('/proc/self/stat').read().rpartition(')')[2].split()[4])\n"
        "trio.run(main)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, CHECKOUT, str(slave)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        pass_fds=[slave],
        start_new_session=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.split() == ["0"]
    for fd in (master, slave):
        os.close(fd)


async def test_a_file_keeps_one_offset(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    with (tmp_path / "file").open("rb+", buffering=0) as file:
        file.read(2)
        room = memoryview(bytearray(4))
        async with source(file.fileno(), ENV) as found:
            assert await found.read_into(room) == 4
            assert bytes(room) == b"2345"
            assert await found.read_into(room) == 4
            assert await found.read_into(room) == 0
        file.write(b"|")
        async with sink(file.fileno(), ENV) as to:
            assert to.try_write(memoryview(b"x")) == 0
            assert await to.write(memoryview(b"shared")) == 6
        file.write(b"|")
    assert (tmp_path / "file").read_bytes() == b"0123456789|shared|"


async def test_a_file_that_is_appended_to(tmp_path: Path) -> None:
    with (tmp_path / "file").open("ab", buffering=0) as one, (tmp_path / "file").open("ab") as two:
        async with sink(one.fileno(), ENV) as found:
            await found.write(memoryview(b"a"))
            two.write(b"b")
            two.flush()
            await found.write(memoryview(b"c"))
    assert (tmp_path / "file").read_bytes() == b"abc"


async def test_a_full_disk() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    async with sink(full, ENV) as found:
        with pytest.raises(Gone, match="No space left"):
            await found.write(memoryview(b"x"))
    os.close(full)


async def test_a_directory(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    async with source(fd, ENV) as found:
        assert await found.read_into(memoryview(bytearray(10))) == 0
    async with sink(fd, ENV) as to:
        with pytest.raises(Gone):
            await to.write(memoryview(b"x"))
    os.close(fd)


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero"])
async def test_devices_that_never_wait(device: str) -> None:
    fd = os.open(device, os.O_RDWR)
    assert is_null(fd) is (device == "/dev/null")
    room = memoryview(bytearray(b"x" * 10))
    async with source(fd, ENV) as found, sink(fd, ENV) as to:
        assert await found.read_into(room) == (10 if device == "/dev/zero" else 0)
        assert to.try_write(room) == 10
        assert await to.write(room) == 10
    os.close(fd)


def test_what_is_not_dev_null(tmp_path: Path) -> None:
    (tmp_path / "null").touch()
    fds = [*os.pipe(), os.open(tmp_path / "null", os.O_RDONLY)]
    for fd in fds:
        assert not is_null(fd)
        os.close(fd)


async def test_the_wrong_way() -> None:
    """They are not opened for it, so they are not used for it."""
    readable, writable = os.pipe()
    async with source(writable, ENV) as found, sink(readable, ENV) as to:
        assert await found.read_into(memoryview(bytearray(10))) == 0
        with pytest.raises(Gone):
            to.try_write(memoryview(b"x"))
        with pytest.raises(Gone):
            await to.write(memoryview(b"x"))
    for fd in (readable, writable):
        os.close(fd)


async def test_a_writer_is_held_no_longer_than_needed() -> None:
    readable, writable = os.pipe()
    async with sink(writable, ENV) as found:
        await found.write(memoryview(b"x"))
        os.close(writable)
        os.set_blocking(readable, False)
        assert os.read(readable, 10) == b"x"
        with pytest.raises(BlockingIOError):
            os.read(readable, 10)
    assert os.read(readable, 10) == b""
    os.close(readable)


async def carry(fd: int, readable: int, size: int) -> int:
    """Carry so many bytes into a pipe; return its capacity then."""
    async with sink(fd, ENV) as found:
        while size > 0:
            size -= await found.write(memoryview(bytes(1 << 16)))
            os.read(readable, 1 << 16)
        return fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)


async def test_a_pipe_that_carries_much_is_made_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    readable, writable = os.pipe()
    assert await carry(writable, readable, 1 << 20) == 1 << 16
    assert await carry(writable, readable, 5 << 20) == 1 << 20
    for fd in (readable, writable):
        os.close(fd)
    readable, writable = os.pipe()
    monkeypatch.setattr(ends, "_MOST_LARGE", 1)
    others = os.pipe()
    async with source(readable, ENV) as found, sink(writable, ENV) as to:
        for _ in range(100):
            await to.write(memoryview(bytes(1 << 16)))
            assert await found.read_into(memoryview(bytearray(1 << 16))) == 1 << 16
        assert fcntl.fcntl(writable, fcntl.F_GETPIPE_SZ) == 1 << 20
        assert await carry(others[1], others[0], 5 << 20) == 1 << 16  # one is enough
    assert await carry(others[1], others[0], 5 << 20) == 1 << 20
    for fd in (readable, writable, *others):
        os.close(fd)


@pytest.mark.parametrize("which", ["pipe", "terminal"])
def test_of_another_user(which: str) -> None:
    """As after su: they can be used, but not opened."""
    user = users.ordinary()
    if which == "pipe":
        readable, writable = os.pipe()
    else:
        readable, writable = pty.openpty()
        tty.setraw(writable)
        os.fchmod(writable, 0o600)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import trio\n"
        "from scrun.supervisor.children.processes import ChildEnv\n"
        "from scrun.supervisor.nodes.ends import sink\n"
        "async def main():\n"
        "    async with sink(int(sys.argv[2]), ChildEnv({})) as found:\n"
        "        await found.write(memoryview(b'hello'))\n"
        "trio.run(main)\n"
    )
    subprocess.run(
        [*user.prefix, sys.executable, "-c", program, CHECKOUT, str(writable)],
        stdin=subprocess.DEVNULL,
        cwd="/",
        pass_fds=[writable],
        timeout=30,
        check=True,
    )
    assert os.read(readable, 100) == b"hello"
    for fd in (readable, writable):
        os.close(fd)


async def test_a_thread_that_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is abandoned, and its descriptor closed when it comes back."""
    release = threading.Event()
    real = os.readv

    def slow(fd: int, rooms: list[memoryview]) -> int:
        release.wait(20)
        return real(fd, rooms)

    (tmp_path / "file").write_bytes(b"x")
    with (tmp_path / "file").open("rb") as file:
        before = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patch:
            patch.setattr(os, "readv", slow)
            with trio.move_on_after(0.2) as scope:
                async with source(file.fileno(), ENV) as found:
                    await found.read_into(memoryview(bytearray(1)))
            assert scope.cancelled_caught
            del found
            assert len(os.listdir("/proc/self/fd")) == before + 1
        release.set()
        await soon(lambda: len(os.listdir("/proc/self/fd")) == before)


@pytest.mark.parametrize("kind", ["pipe", "others"])
async def test_large_pipes_are_counted_as_long_as_they_are_there(
    kind: str, tmp_path: Path, theirs: Callable[[str], None]
) -> None:
    """After sixteen that nobody counted out again, no pipe was enlarged any more."""
    before = ends.Pipe._large
    for _ in range(2):
        readable, writable = pair(kind, tmp_path)
        theirs(kind)
        content = bytes(6 << 20)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all, readable, len(content))
            async with sink(writable, ENV) as found:
                rest = memoryview(content)
                while rest:
                    rest = rest[await found.write(rest) :]
                assert ends.Pipe._large == before + 1
        assert ends.Pipe._large == before
        os.close(readable)
        os.close(writable)
