"""The caller's terminal while a container's is connected to it."""

import fcntl
import os
import pty
import struct
import termios
from collections.abc import Iterator

import pytest
import trio

from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.nodes import ends
from scrun.supervisor.nodes.streams import raw, size
from scrun.supervisor.wire.frames import CLOSED, DATA, END, WINDOW
from tests.harness import users
from tests.harness.peer import soon, talking

ENV = ChildEnv({"PATH": users.PATH})


pytestmark = pytest.mark.usefixtures("no_descriptor_stays")


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A terminal's master and the terminal."""
    master, slave = pty.openpty()
    yield master, slave
    for fd in (master, slave):
        os.close(fd)


def resize(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def test_size(terminal: tuple[int, int]) -> None:
    _, slave = terminal
    assert size(slave) == (24, 80)  # it has none
    assert os.get_terminal_size(slave) == (0, 0)
    resize(slave, 50, 132)
    assert size(slave) == (50, 132)


def test_size_of_a_terminal_that_was_hung_up() -> None:
    master, slave = pty.openpty()
    os.close(master)
    assert size(slave) == (24, 80)
    os.close(slave)


def test_raw(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    before = termios.tcgetattr(slave)
    os.write(master, b"typed\n")  # before: nothing of it is lost
    with raw(slave):
        inside = termios.tcgetattr(slave)
        assert not inside[3] & (termios.ECHO | termios.ICANON | termios.ISIG)
        assert not inside[1] & termios.OPOST
        os.set_blocking(master, False)
        assert os.read(slave, 100) == b"typed\n"
    assert termios.tcgetattr(slave) == before


def test_raw_and_hung_up() -> None:
    master, slave = pty.openpty()
    with raw(slave):
        os.close(master)
    with raw(slave):
        pass
    os.close(slave)


def test_raw_with_stopped_output(terminal: tuple[int, int]) -> None:
    """Somebody pressed ^S: nothing waits for that."""
    master, slave = terminal
    before = termios.tcgetattr(slave)
    termios.tcflow(slave, termios.TCOOFF)
    with raw(slave):
        pass
    assert termios.tcgetattr(slave) == before
    termios.tcflow(slave, termios.TCOON)
    assert master


@pytest.mark.parametrize("others", [False, True])
async def test_both_ways(
    terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch, *, others: bool
) -> None:
    if others:

        def refuse(fd: int, mode: int) -> int:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(ends, "open_again", refuse)
    master, slave = terminal
    resize(slave, 33, 99)
    before, flags = termios.tcgetattr(slave), fcntl.fcntl(slave, fcntl.F_GETFL)
    async with talking(direct=True) as (shim, peer):
        async with shim.streams((slave, slave, slave), True, ENV) as streams:
            number = streams.fields["terminal"]
            assert streams.fields == {"terminal": number, "rows": 33, "columns": 99}
            async with trio.open_nursery() as nursery:

                async def answer() -> None:
                    await peer.reply(await peer.call("create"))

                nursery.start_soon(answer)
                await shim.call("create", id="c", streams=streams.fields)
            assert termios.tcgetattr(slave) != before
            os.write(master, b"key\r")
            assert await peer.frame() == (DATA, number, b"key\r")
            await peer.send(DATA, number, b"shown\n")
            assert await trio.to_thread.run_sync(os.read, master, 100) == b"shown\n"
            assert fcntl.fcntl(slave, fcntl.F_GETFL) == flags
            resize(slave, 40, 120)
            streams.resized("c")
            call = await peer.call("resize")
            assert (call["id"], call["rows"], call["columns"]) == ("c", 40, 120)
            await peer.send(END, number)
            with trio.fail_after(5):
                await streams.finished(100)
        assert (await peer.frame())[:2] == (END, number)
    assert termios.tcgetattr(slave) == before
    assert fcntl.fcntl(slave, fcntl.F_GETFL) == flags


async def test_it_is_hung_up() -> None:
    master, slave = pty.openpty()
    async with (
        talking(direct=True) as (shim, peer),
        shim.streams((slave, slave, slave), True, ENV) as streams,
        trio.open_nursery() as nursery,
    ):
        number = streams.fields["terminal"]

        async def answer() -> None:
            await peer.reply(await peer.call("create"))

        nursery.start_soon(answer)
        await shim.call("create", id="c", streams=streams.fields)
        os.close(master)
        assert await peer.frame() == (END, number, b"")
        await peer.send(DATA, number, b"nobody sees it")
        assert await peer.frame() == (CLOSED, number, b"")
        with trio.fail_after(5):
            await streams.finished(100)
        streams.resized("c")
        assert (await peer.call("resize"))["rows"] == 24
    os.close(slave)


async def test_its_size_is_no_streams_number(terminal: tuple[int, int]) -> None:
    _, slave = terminal
    readable, writable = os.pipe()
    async with (
        talking(direct=True) as (shim, _),
        shim.streams((readable, writable, writable), False, ENV) as others,
    ):
        resize(slave, others.fields["stdout"], others.fields["stderr"])
        async with shim.streams((slave, slave, slave), True, ENV) as streams:
            assert set(streams.fields.values()) > {2, 3}
        streams.resized("c")  # too late: it does nothing
        assert set(shim.table.incoming) == {2, 3}
    os.close(readable)
    os.close(writable)


async def test_the_callers_is_closed(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    again = os.dup(slave)
    before = termios.tcgetattr(slave)
    async with talking(direct=True) as (shim, peer):
        async with shim.streams((again, again, again), True, ENV) as streams:
            os.close(again)
            await peer.send(DATA, streams.fields["terminal"], b"shown")
            assert await trio.to_thread.run_sync(os.read, master, 100) == b"shown"
            assert termios.tcgetattr(slave) != before
            resize(slave, 7, 8)
            assert streams.resized_fields() == {"rows": 7, "columns": 8}
        assert termios.tcgetattr(slave) == before


async def test_it_is_restored_when_the_shim_goes(terminal: tuple[int, int]) -> None:
    _, slave = terminal
    before = termios.tcgetattr(slave)
    async with (
        talking(direct=True) as (shim, peer),
        shim.streams((slave, slave, slave), True, ENV) as streams,
    ):
        for _ in range(0, WINDOW, 1 << 16):  # its reader does not read
            await peer.send(DATA, streams.fields["terminal"], bytes(1 << 16))
        await peer.close()
        await soon(shim.lost.is_set)
    assert termios.tcgetattr(slave) == before
