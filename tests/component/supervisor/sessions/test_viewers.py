"""Those who are attached to a container: what they may send, and what they get."""

import os
import tty
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from scrun.core.errors import StateError
from scrun.protocol.attach import DATA, FRAMED, POSITION, SIGNAL, SIZE, TAKEN, frame
from scrun.supervisor.containers.capture import CapturedOutput
from scrun.supervisor.containers.container import Container
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.sessions.viewers import attach


class Attached:
    """A container with a terminal of ours, and somebody's connection to it."""

    def __init__(self, path: Path, unkillable: Exception | None = None) -> None:
        self.stdio = Stdio([os.open("/dev/null", os.O_RDWR) for _ in range(3)], terminal=False)
        self.captured = CapturedOutput(str(path), 16 << 20, print)
        self.end = -1
        self.ended = trio.Event()
        self.got: list[int] = []
        self.resizes = 0

        async def kill(number: int) -> None:
            await trio.lowlevel.checkpoint()
            self.got.append(number)
            raise unkillable or StateError("it ends")

        def resized() -> None:
            self.resizes += 1

        container = SimpleNamespace(
            id="box",
            captured=self.captured,
            ended=self.ended,
            exit_status=7,
            kill=kill,
            resized=resized,
        )
        self.container = cast(Container, container)

    async def connect(self) -> "Attached":
        await self.captured.connect(self.stdio, terminal=True)
        self.end = self.stdio.fds[0]
        tty.setraw(self.end)
        return self


async def serve(box: Attached, connection: trio.SocketStream) -> None:
    async with connection:
        await attach(box.container, connection)


@pytest.mark.parametrize("unkillable", [None, PermissionError(1, "Operation not permitted")])
async def test_frames_of_somebody_attached(tmp_path: Path, unkillable: Exception | None) -> None:
    box = await Attached(tmp_path / "output", unkillable).connect()
    theirs, ours = (trio.SocketStream(end) for end in trio.socket.socketpair())
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery, theirs:
            nursery.start_soon(box.captured.capture)
            nursery.start_soon(serve, box, ours)
            assert await theirs.receive_some(2) == b"\0\1"  # granted; it has a terminal
            odd = frame(b"?", b"x") + frame(SIZE, b"x") + frame(SIGNAL, b"") + frame(DATA, b"")
            size = frame(SIZE, b"\0\x18\0\x50")
            signals = frame(SIGNAL, b"\x0f") + frame(SIGNAL, b"\xff") + frame(SIGNAL, b"\0")
            for byte in odd + size + signals + frame(DATA, b"typed"):
                await theirs.send_all(bytes([byte]))
            await trio.lowlevel.wait_readable(box.end)
            assert os.read(box.end, 100) == b"typed"
            assert os.get_terminal_size(box.end) == (80, 24)
            assert (box.got, box.resizes) == ([15], 1)
            os.write(box.end, b"out")
            assert await theirs.receive_some(100) == frame(DATA, b"out")
            box.stdio.close()
            await trio.testing.wait_all_tasks_blocked()
            box.ended.set()
            assert await theirs.receive_some(100) == frame(SIGNAL, b"\x07")


async def test_who_can_go_on_knows_the_position_and_what_was_taken(tmp_path: Path) -> None:
    box = await Attached(tmp_path / "output").connect()
    theirs, ours = (trio.SocketStream(end) for end in trio.socket.socketpair())

    async def serve_again() -> None:
        async with ours:
            await attach(box.container, ours, 3, resumes=True)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery, theirs:
            nursery.start_soon(box.captured.capture)
            os.write(box.end, b"0123456789")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(serve_again)
            expected = FRAMED + b"\1" + frame(POSITION, bytes(7) + b"\3")
            expected += frame(DATA, b"3456789")
            await theirs.send_all(frame(SIGNAL, b"\x0f") + frame(DATA, b"typed"))
            expected_too = frame(TAKEN, b"") * 2
            got = b""
            while len(got) < len(expected + expected_too):
                got += await theirs.receive_some(100)
            assert got.replace(frame(TAKEN, b""), b"") == expected
            assert len(got) == len(expected + expected_too)
            assert os.read(box.end, 100) == b"typed"
            box.stdio.close()
            await trio.testing.wait_all_tasks_blocked()
            box.ended.set()
            assert await theirs.receive_some(100) == frame(SIGNAL, b"\x07")


async def test_what_is_typed_arrives_once_whoever_is_killed(tmp_path: Path) -> None:
    """Each byte is in the peer's pipe or has arrived, so the next one goes on with the rest."""
    box = await Attached(tmp_path / "output").connect()
    written = bytes(range(256)) * 200  # more than there is room for in a terminal
    typed, typing = os.pipe()
    os.write(typing, written)
    os.close(typing)
    got = b""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(box.captured.capture)
            for part in (1000, 20_000, len(written)):
                theirs, ours = (trio.SocketStream(end) for end in trio.socket.socketpair())
                async with theirs, ours, trio.open_nursery() as one:
                    one.start_soon(partial(attach, box.container, ours, 0, typed, resumes=True))
                    assert await theirs.receive_some(2) == FRAMED + b"\3"
                    while len(got) < part:
                        await trio.lowlevel.wait_readable(box.end)
                        got += os.read(box.end, 1000)
                    one.cancel_scope.cancel()
            box.stdio.close()
    os.close(typed)
    assert got == written


async def test_what_was_typed_by_somebody_who_has_gone_arrives(tmp_path: Path) -> None:
    box = await Attached(tmp_path / "output").connect()
    theirs, ours = (trio.SocketStream(end) for end in trio.socket.socketpair())
    typed, typing = os.pipe()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(box.captured.capture)
            os.write(typing, bytes(50_000))
            os.close(typing)
            async with ours, trio.open_nursery() as one:
                one.start_soon(partial(attach, box.container, ours, 0, typed, resumes=True))
                assert await theirs.receive_some(2) == FRAMED + b"\3"
                await theirs.aclose()
                got = 0
                while got < 50_000:
                    await trio.lowlevel.wait_readable(box.end)
                    got += len(os.read(box.end, 50_000))
            box.stdio.close()
    os.close(typed)


@pytest.mark.parametrize("length", [0xFFFFFFFF, 1 << 21])
async def test_a_frame_is_bounded(tmp_path: Path, length: int) -> None:
    box = await Attached(tmp_path / "output").connect()
    theirs, ours = (trio.SocketStream(end) for end in trio.socket.socketpair())
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery, theirs:
            nursery.start_soon(box.captured.capture)
            nursery.start_soon(serve, box, ours)
            assert await theirs.receive_some(2) == b"\0\1"  # granted; it has a terminal
            await theirs.send_all(DATA + length.to_bytes(4, "big"))
            with pytest.raises(trio.BrokenResourceError):
                await theirs.send_all(bytes(8 << 20))
            box.stdio.close()


async def test_a_container_whose_output_is_not_ours(tmp_path: Path) -> None:
    container: Any = SimpleNamespace(id="box", captured=None)
    with pytest.raises(StateError, match="its output is not kept here"):
        await attach(container, cast(trio.SocketStream, None))
