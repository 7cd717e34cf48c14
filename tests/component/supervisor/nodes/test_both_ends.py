"""A real shim, started as on a node, with a real runtime, and the supervisor's end of it."""

import fcntl
import hashlib
import os
import pty
import signal
import socket
import struct
import termios
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from scrun.supervisor.children.processes import Child, ChildEnv, child
from scrun.supervisor.nodes import beginning
from scrun.supervisor.nodes.beginning import Direct, begin_call, begun
from scrun.supervisor.nodes.code import boot_command, variables
from scrun.supervisor.nodes.connection import Shim, ShimError, ShimLost, connected
from scrun.supervisor.nodes.dialing import Unreached
from scrun.supervisor.nodes.link import SEALING, Sealing
from tests.harness import users
from tests.harness.bundle import make_config, make_rootfs
from tests.harness.peer import Said, soon

ENV = ChildEnv({"PATH": users.PATH})
MIB = 1 << 20
SIZE = int(os.environ.get("SCRUN_TEST_MIB", "16")) * MIB
NULL = os.open(os.devnull, os.O_RDWR)


pytestmark = pytest.mark.usefixtures("no_descriptor_stays")


@pytest.fixture(scope="module")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nodes") / "rootfs"
    make_rootfs(path)
    return path


class Node:
    """A shim and the process that it is."""

    def __init__(self, shim: Shim, process: Child, rootfs: Path) -> None:
        self.shim = shim
        self.process = process
        self._rootfs = rootfs

    def config(self, *args: str, terminal: bool = False) -> dict[str, Any]:
        config = make_config(args, str(self._rootfs), terminal=terminal)
        config["linux"]["namespaces"] = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
        config["mounts"] = [
            m for m in config["mounts"] if m["type"] in ("proc", "tmpfs", "devpts")
        ]
        return config

    @asynccontextmanager
    async def running(
        self, *args: str, stdio: tuple[int, int, int], terminal: bool = False, name: str = "c"
    ) -> AsyncIterator[Any]:
        """A container that has been started."""
        async with self.shim.streams(stdio, terminal, ENV) as streams:
            await self.shim.call(
                "create", id=name, name=name, config=self.config(*args, terminal=terminal),
                streams=streams.fields,
            )  # fmt: skip
            await self.shim.call("start", id=name)
            yield streams

    async def run(self, *args: str, stdio: tuple[int, int, int], name: str = "c") -> int:
        """Run a container to its end; return its exit status."""
        async with self.running(*args, stdio=stdio, name=name) as streams:
            status = await self.shim.ended(name)
            await streams.finished(5)
        await self.shim.call("delete", id=name)
        return os.waitstatus_to_exitcode(status)


@asynccontextmanager
async def node(
    rootfs: Path,
    tmp_path: Path,
    *,
    direct: bool = True,
    patience: float = 2,
    said: Said | None = None,
    sealing: Sealing = SEALING,
) -> AsyncIterator[Node]:
    (tmp_path / "tmp").mkdir(exist_ok=True)
    stdin, to_shim = os.pipe()
    from_shim, stdout = os.pipe()
    env = ENV.with_more({"TMPDIR": str(tmp_path / "tmp"), **variables()})
    async with (
        child(boot_command(), env, stdin=stdin, stdout=stdout, stderr=2) as process,
        connected(to_shim, from_shim, (said or Said()).journal) as shim,
    ):
        os.close(stdin)
        os.close(stdout)
        how = Direct(direct, None, patience=patience, sealing=sealing)
        assert (await begun(shim, how, (said or Said()).journal, "", "")).runtime
        yield Node(shim, process, rootfs)


@pytest.mark.parametrize("direct", [True, False])
async def test_output(rootfs: Path, tmp_path: Path, *, direct: bool) -> None:
    readable, writable = os.pipe()
    errors, complaining = os.pipe()
    got = bytearray()

    def read() -> None:
        while part := os.read(readable, MIB):
            got.extend(part)

    async with node(rootfs, tmp_path, direct=direct) as there, trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, read)
        script = f"head -c {SIZE} /dev/zero | tr '\\000' x; echo end >&2; exit 7"
        status = await there.run("sh", "-c", script, stdio=(NULL, writable, complaining))
        os.close(writable)
        os.close(complaining)
    assert status == 7
    assert os.read(errors, 100) == b"end\n"
    assert hashlib.sha256(got).digest() == hashlib.sha256(b"x" * SIZE).digest()
    os.close(readable)
    os.close(errors)


def write_all(fd: int, content: bytes) -> None:
    with open(fd, "wb") as file:
        file.write(content)


@pytest.mark.parametrize("direct", [True, False])
async def test_both_ways(rootfs: Path, tmp_path: Path, *, direct: bool) -> None:
    content = os.urandom(SIZE)
    given, typing = os.pipe()
    readable, writable = os.pipe()
    got = bytearray()

    def read() -> None:
        while part := os.read(readable, MIB):
            got.extend(part)

    async with node(rootfs, tmp_path, direct=direct) as there, trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, read)
        nursery.start_soon(trio.to_thread.run_sync, write_all, typing, content)
        assert await there.run("cat", stdio=(given, writable, 2)) == 0
        os.close(writable)
    assert got == content
    os.close(given)
    os.close(readable)


async def test_files(rootfs: Path, tmp_path: Path) -> None:
    content = os.urandom(SIZE)
    (tmp_path / "in").write_bytes(content)
    async with node(rootfs, tmp_path) as there:
        with (tmp_path / "in").open("rb") as given, (tmp_path / "out").open("wb") as taken:
            stdio = (given.fileno(), taken.fileno(), 2)
            assert await there.run("cat", stdio=stdio) == 0
    assert (tmp_path / "out").read_bytes() == content


async def test_a_reader_that_goes(rootfs: Path, tmp_path: Path) -> None:
    readable, writable = os.pipe()
    async with node(rootfs, tmp_path) as there:

        async def leave() -> None:
            await trio.to_thread.run_sync(os.read, readable, 100)
            os.close(readable)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave)
            with trio.fail_after(20):
                status = await there.run("yes", stdio=(NULL, writable, 2))
        assert status in (-signal.SIGPIPE, 1)
    os.close(writable)


async def test_a_reader_that_stops(rootfs: Path, tmp_path: Path) -> None:
    readable, writable = os.pipe()
    size = 4 * MIB
    async with node(rootfs, tmp_path) as there:
        async with there.running(
            "sh", "-c", f"head -c {size} /dev/zero", stdio=(NULL, writable, 2)
        ) as streams:
            await trio.sleep(1)
            got = 0
            while got < size:
                got += len(await trio.to_thread.run_sync(os.read, readable, MIB))
            assert await there.shim.ended("c") == 0
            await streams.finished(5)
        await there.shim.call("delete", id="c")
    os.close(writable)
    assert os.read(readable, 10) == b""
    os.close(readable)


async def test_a_node_that_does_not_reach_us(
    rootfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing answers there, as behind a firewall."""

    monkeypatch.setattr(beginning, "_unreached", Unreached())
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        filling = [socket.socket() for _ in range(4)]
        for sock in filling:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))

        def unanswered(port_of_ours: int, *words: Any) -> dict[str, Any]:
            return {**begin_call(port_of_ours, *words), "port": port}

        monkeypatch.setattr(beginning, "begin_call", unanswered)
        readable, writable = os.pipe()
        async with node(rootfs, tmp_path, patience=0.4) as there:
            assert not there.shim.is_direct
            assert 0.3 < there.shim.asked.waited < 3
            assert await there.run("echo", "hello", stdio=(NULL, writable, 2)) == 0
        assert os.read(readable, 100) == b"hello\n"
        for fd in (readable, writable):
            os.close(fd)
        for sock in filling:
            sock.close()


async def test_exec(rootfs: Path, tmp_path: Path) -> None:
    async with node(rootfs, tmp_path) as there:
        async with there.running("sleep", "1000", stdio=(NULL, NULL, NULL)):
            process = there.config("sh", "-c", "cat; echo $0; exit 3")["process"]
            given, typing = os.pipe()
            readable, writable = os.pipe()
            os.write(typing, b"typed\n")
            os.close(typing)
            async with there.shim.streams((given, writable, 2), False, ENV) as streams:
                await there.shim.call(
                    "exec", id="e", container="c", process=process, streams=streams.fields
                )
                status = await there.shim.ended("e")
                await streams.finished(5)
            assert os.waitstatus_to_exitcode(status) == 3
            assert os.read(readable, 100) == b"typed\nsh\n"
            for fd in (given, readable, writable):
                os.close(fd)
            await there.shim.call("signal", id="c", number=9, all=False)
            assert await there.shim.ended("c") == 9
        await there.shim.call("delete", id="c")


async def test_a_program_that_is_not_there(rootfs: Path, tmp_path: Path) -> None:
    readable, writable = os.pipe()
    async with node(rootfs, tmp_path) as there:
        async with there.shim.streams((NULL, NULL, writable), False, ENV) as streams:
            with pytest.raises(ShimError) as caught:
                await there.shim.call(
                    "create", id="c", name="c", config=there.config("nowhere"),
                    streams=streams.fields,
                )  # fmt: skip
            with trio.fail_after(5):
                await streams.finished(100)
        assert "nowhere" in f"{caught.value} {caught.value.log}"
        await there.shim.call("delete", id="c")
    for fd in (readable, writable):
        os.close(fd)


async def test_a_terminal(rootfs: Path, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    before = termios.tcgetattr(slave)
    flags = fcntl.fcntl(slave, fcntl.F_GETFL)
    shown = bytearray()

    async def see(what: bytes) -> None:
        os.set_blocking(master, False)
        with trio.fail_after(10):
            while what not in shown:
                await trio.lowlevel.wait_readable(master)
                shown.extend(os.read(master, 65536))

    async with node(rootfs, tmp_path) as there:
        script = "stty size; trap 'stty size' WINCH; read x; echo got $x; read y; echo bye"
        async with there.running(
            "sh", "-c", script, stdio=(slave, slave, slave), terminal=True
        ) as streams:
            assert not termios.tcgetattr(slave)[3] & termios.ECHO
            await see(b"33 101\r\n")
            os.write(master, b"hello\r")
            await see(b"hello\r\ngot hello\r\n")
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 88, 0, 0))
            streams.resized("c")
            await see(b"44 88\r\n")
            os.write(master, b"x\r")
            await see(b"bye\r\n")
            assert await there.shim.ended("c") == 0
            with trio.fail_after(5):
                await streams.finished(100)
        await there.shim.call("delete", id="c")
    assert termios.tcgetattr(slave) == before
    assert fcntl.fcntl(slave, fcntl.F_GETFL) == flags
    for fd in (master, slave):
        os.close(fd)


async def test_many_at_once(rootfs: Path, tmp_path: Path) -> None:
    async with node(rootfs, tmp_path) as there:
        pipes = [os.pipe() for _ in range(10)]

        async def one(number: int) -> None:
            stdio = (NULL, pipes[number][1], 2)
            assert await there.run("echo", str(number), stdio=stdio, name=f"c{number}") == 0

        async with trio.open_nursery() as nursery:
            for number in range(len(pipes)):
                nursery.start_soon(one, number)
        for number, (readable, writable) in enumerate(pipes):
            assert os.read(readable, 100) == b"%d\n" % number
            os.close(readable)
            os.close(writable)


def cgroups(name: str) -> list[Path]:
    whole = Path("/sys/fs/cgroup")
    return [*whole.glob(name), *whole.glob(f"*/{name}")]


async def test_the_shim_is_killed(rootfs: Path, tmp_path: Path) -> None:
    """The next one removes what it has left, the container's cgroup as well."""
    async with (
        node(rootfs, tmp_path) as there,
        there.running("sleep", "1000", stdio=(NULL, NULL, NULL)),
    ):
        directory = Path((await there.shim.hello()).directory)
        there.process.signal(signal.SIGKILL)
        with trio.fail_after(5), pytest.raises(ShimLost):
            await there.shim.ended("c")
    async with node(rootfs, tmp_path):
        await soon(lambda: not directory.exists())
    assert not cgroups(f"{directory.name}-*")


@pytest.mark.covers("security break a connection")
async def test_the_direct_connection_breaks(rootfs: Path, tmp_path: Path) -> None:
    async with (
        node(rootfs, tmp_path) as there,
        there.running("sleep", "1000", stdio=(NULL, NULL, NULL)),
    ):
        with socket.socket(fileno=os.dup(there.shim.table.link._readable)) as sock:
            sock.shutdown(socket.SHUT_RDWR)
        with trio.fail_after(5), pytest.raises(ShimLost):
            await there.shim.ended("c")
        process = there.process
        assert not process.ended, "another supervisor may come, as long as srun is there"
    assert process.ended
    await soon(lambda: not os.listdir(tmp_path / "tmp"))


async def test_leaving_ends_everything(rootfs: Path, tmp_path: Path) -> None:
    async with node(rootfs, tmp_path) as there:
        async with there.running("sleep", "1000", stdio=(NULL, NULL, NULL)):
            pid = (await there.shim.call("script", script="echo $PPID"))["text"]
            assert int(pid) == (await there.shim.hello()).pid
        process = there.process
    assert process.ended
    await soon(lambda: not os.listdir(tmp_path / "tmp"))


async def test_a_script(rootfs: Path, tmp_path: Path) -> None:
    async with node(rootfs, tmp_path) as there:
        began = time.monotonic()
        reply = await there.shim.call("script", script="echo out; echo err >&2; exit 4")
        assert (reply["status"], reply["text"]) == (4, "out\nerr\n")
        reply = await there.shim.call("script", script='eval "$SCRUN_RUNTIME --version"')
        assert reply["status"] == 0
        assert time.monotonic() - began < 5
