"""Bytes on their way: nothing is lost, nothing hangs, nobody else's descriptor is changed."""

import fcntl
import os
import socket
import sys
import time
from pathlib import Path

import pytest
import trio

from scrun.supervisor.children.processes import ChildEnv, child
from scrun.supervisor.children.pumps import (
    LINE_LIMIT,
    can_be_opened_again,
    cat_to,
    lines,
    messages,
    tee,
)
from tests import CHECKOUT
from tests.harness import users
from tests.harness.program import run_program

SETTING = ChildEnv({"PATH": users.PATH})


pytestmark = pytest.mark.usefixtures("no_descriptor_stays")


async def all_lines(*parts: bytes) -> list[str]:
    """The lines of what is written to a pipe, in these parts."""
    readable, writable = os.pipe()

    async def write() -> None:
        async with trio.lowlevel.FdStream(writable) as stream:
            for part in parts:
                await stream.send_all(part)
                await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        return [line async for line in lines(readable)]
    raise AssertionError("unreachable")


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([], []),
        ([b"\n"], [""]),
        ([b"one\ntwo\n"], ["one", "two"]),
        ([b"one\n\ntwo"], ["one", "", "two"]),
        ([b"no end"], ["no end"]),
        ([b"o", b"n", b"e", b"\n", b"t", b"wo"], ["one", "two"]),
        ([b"one\nt", b"wo\nthr", b"ee\n"], ["one", "two", "three"]),
        ([b"as Windows\r\n", b"and\r", b"\n"], ["as Windows", "and"]),
        ([b"\xc3", b"\xa4\n"], ["ä"]),
        ([b"\xff\xfe\n"], ["��"]),
        ([b"with\0nul\n"], ["with\0nul"]),
    ],
)
async def test_lines(parts: list[bytes], expected: list[str]) -> None:
    assert await all_lines(*parts) == expected


@pytest.mark.parametrize("end", [b"", b"\n"])
async def test_overlong_line_comes_in_pieces(end: bytes) -> None:
    content = b"x" * (3 * LINE_LIMIT) + b"y"
    found = await all_lines(b"before\n", content, end + b"after")
    assert found[0] == "before"
    assert "".join(found[1:]).encode() == content + b"after"
    assert max(map(len, found)) <= 2 * LINE_LIMIT


async def test_lines_left_early_closes_its_end() -> None:
    readable, writable = os.pipe()
    os.write(writable, b"one\ntwo\n")
    generator = lines(readable)
    assert await anext(generator) == "one"
    await generator.aclose()  # type: ignore[attr-defined]
    with pytest.raises(BrokenPipeError):
        os.write(writable, b"three\n")
    os.close(writable)


async def test_messages_of_a_child() -> None:
    heard: list[str] = []
    script = "echo one >&2; printf 'two\\nthree' >&2"
    async with messages(heard.append) as error, child(["sh", "-c", script], SETTING, stderr=error):
        await trio.sleep(0.2)
    assert heard == ["one", "two", "three"]


async def test_messages_are_all_there_when_it_is_left() -> None:
    heard: list[str] = []
    async with (
        messages(heard.append) as error,
        child(["seq", "20000"], SETTING, stdout=error) as running,
    ):
        await running.wait()
    assert heard == [str(number) for number in range(1, 20001)]


async def test_last_words_of_a_child_that_is_cancelled() -> None:
    heard: list[str] = []
    script = "trap 'echo last words >&2; exit' TERM; echo up >&2; while :; do sleep 0.02; done"

    def hear(line: str) -> None:
        heard.append(line)
        if line == "up":
            scope.cancel()

    with trio.CancelScope() as scope:
        async with messages(hear) as error, child(["sh", "-c", script], SETTING, stderr=error):
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert heard == ["up", "last words"]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_grandchild_that_keeps_the_descriptor(*, cancelled: bool) -> None:
    heard: list[str] = []
    began = time.monotonic()
    with trio.CancelScope() as scope:
        async with (
            messages(heard.append) as error,
            child(["sh", "-c", "sleep 8 & echo $! >&2"], SETTING, stderr=error) as running,
        ):
            await running.wait()
            if cancelled:
                scope.cancel()
    assert time.monotonic() - began < 6
    assert len(heard) == 1
    os.kill(int(heard[0]), 15)


async def test_messages_of_nobody() -> None:
    heard: list[str] = []
    began = time.monotonic()
    async with messages(heard.append):
        pass
    assert heard == []
    assert time.monotonic() - began < 1


async def test_an_error_in_the_block_comes_out() -> None:
    with pytest.raises(ZeroDivisionError):
        async with messages(print):
            raise ZeroDivisionError


def test_can_a_pipe_be_opened_again() -> None:
    readable, writable = os.pipe()
    assert can_be_opened_again(writable)
    os.close(readable)
    assert can_be_opened_again(writable)  # a broken one too: that is for the container to see
    os.close(writable)


def test_can_a_named_pipe_be_opened_again(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    readable = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    writable = os.open(tmp_path / "pipe", os.O_WRONLY)
    assert can_be_opened_again(writable)
    os.close(readable)
    assert not can_be_opened_again(writable)  # srun would wait for a reader
    os.close(writable)


def test_can_a_file_be_opened_again(tmp_path: Path) -> None:
    """Not in a way that shares its offset."""
    with (tmp_path / "file").open("w") as file:
        assert not can_be_opened_again(file.fileno())


def test_can_a_socket_be_opened_again() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not can_be_opened_again(ours.fileno())


def test_can_a_terminal_be_opened_again() -> None:
    master, slave = os.openpty()
    assert can_be_opened_again(slave)
    os.close(master)
    assert not can_be_opened_again(slave)
    os.close(slave)


def test_can_dev_null_be_opened_again() -> None:
    with open(os.devnull, "w") as null:
        assert can_be_opened_again(null.fileno())


def test_asking_does_not_make_a_terminal_ours() -> None:
    master, slave = os.openpty()
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from scrun.supervisor.children.pumps import can_be_opened_again\n"
        "print(can_be_opened_again(int(sys.argv[2])))\n"
        "print(open('/proc/self/stat').read().rpartition(')')[2].split()[4])\n"
    )
    done = run_program(
        [sys.executable, "-c", program, CHECKOUT, str(slave)],
        pass_fds=[slave],
        start_new_session=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "0"]
    os.close(master)
    os.close(slave)


def test_can_another_users_stream_be_opened_again() -> None:
    """As after su: it can be written to, but not by its path."""
    user = users.ordinary()
    readable, writable = os.pipe()
    master, slave = os.openpty()
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from scrun.supervisor.children.pumps import can_be_opened_again\n"
        "print(*(can_be_opened_again(int(fd)) for fd in sys.argv[2:]))\n"
    )
    fds = (writable, slave)
    done = run_program(
        [*user.prefix, sys.executable, "-c", program, CHECKOUT, *map(str, fds)],
        cwd="/",
        pass_fds=fds,
        check=True,
    )
    assert done.stdout.split() == ["False", "False"]
    for fd in (readable, writable, master, slave):
        os.close(fd)


@pytest.mark.parametrize("way", ["cat_to", "tee"])
async def test_one_that_cannot_be_started_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("subprocess.Popen", refuse)
    for _ in range(5):
        context = cat_to(1, SETTING) if way == "cat_to" else tee(1, SETTING, print)
        with pytest.raises(BlockingIOError):
            await context.__aenter__()


def is_nonblocking(fd: int) -> bool:
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK)


CONTENT = bytes(range(256)) * 4096  # 1 MiB


def write_all(fd: int, content: bytes) -> None:
    with memoryview(content) as rest:
        done = 0
        while done < len(rest):
            done += os.write(fd, rest[done:])


@pytest.mark.parametrize("way", ["cat_to", "tee"])
async def test_to_a_regular_file(tmp_path: Path, way: str) -> None:
    heard = bytearray()
    with (tmp_path / "file").open("wb", buffering=0) as file:
        file.write(b"before|")
        if way == "cat_to":
            async with cat_to(file.fileno(), SETTING) as pipe:
                await trio.to_thread.run_sync(write_all, pipe, CONTENT)
        else:
            async with tee(file.fileno(), SETTING, heard.extend) as pipe:
                await trio.to_thread.run_sync(write_all, pipe, CONTENT)
            assert heard == CONTENT
        assert not is_nonblocking(file.fileno())
        file.write(b"|after")  # the offset is one for all who share the file
    assert (tmp_path / "file").read_bytes() == b"before|" + CONTENT + b"|after"


@pytest.mark.parametrize("way", ["cat_to", "tee"])
@pytest.mark.parametrize("kind", ["socket", "pipe"])
async def test_to_somebody_who_reads(kind: str, way: str) -> None:
    if kind == "socket":
        ours, theirs = socket.socketpair()
        readable, target = ours.detach(), theirs.detach()
    else:
        readable, target = os.pipe()
    got = bytearray()
    heard = bytearray()
    nonblocking: list[bool] = []

    def read() -> None:
        while data := os.read(readable, 65536):
            got.extend(data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, read)
        context = (
            cat_to(target, SETTING) if way == "cat_to" else tee(target, SETTING, heard.extend)
        )
        async with context as pipe:
            await trio.to_thread.run_sync(write_all, pipe, CONTENT)
            nonblocking.append(is_nonblocking(target))
        nonblocking.append(is_nonblocking(target))
        os.close(target)
    assert bytes(got) == CONTENT
    assert heard == (b"" if way == "cat_to" else CONTENT)
    assert nonblocking == [False, False]
    os.close(readable)


@pytest.mark.parametrize("way", ["cat_to", "tee"])
async def test_to_a_reader_that_is_gone(way: str) -> None:
    """The container hears of it as it would without us: its next write fails."""
    readable, target = os.pipe()
    os.close(readable)
    with trio.fail_after(10):
        context = (
            cat_to(target, SETTING) if way == "cat_to" else tee(target, SETTING, lambda data: None)
        )
        async with context as pipe:

            def write() -> None:
                for _ in range(100):
                    os.write(pipe, b"x" * 4096)
                    time.sleep(0.01)

            with pytest.raises(BrokenPipeError):
                await trio.to_thread.run_sync(write)
    os.close(target)


async def left_within(way: str, target: int, *, cancel: bool, content: bytes) -> float:
    """How long leaving takes; never longer than what the test can afford."""
    os.set_blocking(target, True)
    began = 0.0
    with trio.CancelScope() as scope:
        context = (
            cat_to(target, SETTING) if way == "cat_to" else tee(target, SETTING, lambda data: None)
        )
        async with context as pipe:
            duplicate = os.dup(pipe)
            # a file description of its own, so that not blocking is a matter of the test alone
            own = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
            os.close(duplicate)
            with trio.move_on_after(1):
                rest = content
                while rest:
                    try:
                        rest = rest[os.write(own, rest) :]
                    except BlockingIOError:
                        await trio.sleep(0.01)
            os.close(own)
            began = time.monotonic()
            if cancel:
                scope.cancel()
                await trio.lowlevel.checkpoint_if_cancelled()
    return time.monotonic() - began


@pytest.mark.parametrize("way", ["cat_to", "tee"])
async def test_a_reader_that_does_not_read_stops_nobody(way: str) -> None:
    """A container can be ended even when its engine does not take its standard error."""
    readable, target = os.pipe()
    watchdog = 6.0

    def rescue() -> None:
        while os.read(readable, 65536):
            pass

    async def come_late() -> None:
        await trio.sleep(1 + watchdog)
        await trio.to_thread.run_sync(rescue, abandon_on_cancel=True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come_late)
        took = await left_within(way, target, cancel=True, content=CONTENT)
        os.close(target)
        nursery.cancel_scope.cancel()
    os.close(readable)
    assert took < watchdog


async def test_a_slow_reader_gets_all() -> None:
    """What the container has written is written: its reader may take its time."""
    readable, target = os.pipe()
    content = CONTENT[: 160 * 1024]
    got = bytearray()

    def read() -> None:
        time.sleep(4)
        while data := os.read(readable, 65536):
            got.extend(data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, read)
        await left_within("cat_to", target, cancel=False, content=content)
        os.close(target)
    os.close(readable)
    assert bytes(got) == content


async def test_carried_to_what_could_not_be_opened(tmp_path: Path) -> None:
    """Written through the descriptor, whose path is gone."""
    with (tmp_path / "file").open("w+b") as file:
        (tmp_path / "file").unlink()
        async with cat_to(file.fileno(), SETTING) as pipe:
            os.write(pipe, b"through")
        file.seek(0)
        assert file.read() == b"through"
