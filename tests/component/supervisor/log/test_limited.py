"""Files with a limit: what goes, what stays, and who reads meanwhile."""

import itertools
import os
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
import trio
import trio.testing

from scrun.cli.parse import parse
from scrun.commands import logs
from scrun.supervisor.containers.capture import CapturedOutput, Followed
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.log.files import LimitedFile
from tests.harness import places
from tests.harness.processes import descriptors

LIMIT = 256 << 10


def numbered(count: int, start: int = 0) -> Iterator[bytes]:
    return (b"%09d\n" % number for number in range(start, start + count))


def kept(path: Path) -> bytes:
    older = path.with_name(path.name + ".1")
    return (older.read_bytes() if older.exists() else b"") + path.read_bytes()


def test_the_oldest_goes_and_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "output"
    file = LimitedFile(str(path), LIMIT)
    for line in numbered(100_000):
        assert file.write(line) is None
    file.close()
    content = kept(path)
    assert LIMIT // 2 < len(content) <= LIMIT
    assert content == b"".join(numbered(100_000))[-len(content) :]
    assert file.lost == 1_000_000 - len(content)
    assert int((tmp_path / "output.lost").read_text()) == file.lost


def test_nothing_is_lost_before_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "output"
    file = LimitedFile(str(path), LIMIT)
    lines = list(numbered(LIMIT // 10))
    for line in lines:
        file.write(line)
    file.close()
    assert kept(path) == b"".join(lines)
    assert not (tmp_path / "output.lost").exists()


def test_one_that_rests_is_open_only_when_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = LimitedFile(str(path), LIMIT)
    lines = list(numbered(LIMIT // 7))
    for line in lines[:5]:
        file.write(line)
    file.rest()
    for number, line in enumerate(lines[5:]):
        assert file.write(line) is None
        if number % 100:
            continue
        assert not [open_ for open_ in descriptors().values() if open_.startswith(str(tmp_path))]
    assert kept(path) == b"".join(lines)[-len(kept(path)) :]
    assert file.generation > 0
    path.unlink()
    tmp_path.rename(tmp_path.with_name("gone"))
    lost = file.lost
    assert isinstance(file.write(b"x"), FileNotFoundError)
    assert file.lost == lost + 1
    file.close()
    tmp_path.with_name("gone").rename(tmp_path)
    assert file.write(b"x") is None
    assert not path.exists()


def test_a_device_stays_what_it_is() -> None:
    file = LimitedFile("/dev/null", LIMIT)
    for _ in range(10):
        assert file.write(b"x" * LIMIT) is None
    file.close()
    assert not os.path.exists("/dev/null.1")
    full = LimitedFile("/dev/full", LIMIT)
    assert full.write(b"x") is not None
    full.close()


def test_on_a_full_disk_others_have_space(tmp_path: Path) -> None:
    """A limit that is larger than the file system, as with a small /run/user."""
    with places.mounted(tmp_path / "small", "-o", "size=1m"):
        path = tmp_path / "small" / "output"
        file = LimitedFile(str(path), 16 << 20)
        errors = [file.write(line * 100) for line in numbered(4000)]
        assert any(error is not None and error.strerror for error in errors)
        (tmp_path / "small" / "record").write_bytes(b"x" * (100 << 10))
        errors = [file.write(line * 100) for line in numbered(4000)]
        assert path.stat().st_size > 0
        (tmp_path / "small" / "another").write_bytes(b"x" * (100 << 10))
        file.close()


@pytest.mark.parametrize("pause", [1, 5000, 100_000])
async def test_who_follows_gets_what_is_there(tmp_path: Path, pause: int) -> None:
    """One that keeps up gets all; one that is too slow misses what is gone."""
    path = tmp_path / "output"
    file = LimitedFile(str(path), LIMIT)
    followed = Followed(str(path), file)
    got = bytearray()

    async def read() -> None:
        async with aclosing(followed.read(from_now=False)) as pieces:
            async for piece in pieces:
                got.extend(piece)

    before = len(os.listdir("/proc/self/fd"))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for number, line in enumerate(numbered(60_000), 1):
                file.write(line)
                if number % max(pause, 500) == 0:
                    followed.grew()
                    await trio.testing.wait_all_tasks_blocked()
            followed.end()
    assert len(os.listdir("/proc/self/fd")) == before
    file.close()
    lines = [int(line) for line in got.split()]
    assert lines == sorted(set(lines))
    assert lines[-1] == 59_999
    if pause < LIMIT // 20:
        assert lines == list(range(60_000))
    else:
        assert b"%09d\n" % lines[0] == kept(path)[:10]


async def test_one_that_begins_late_has_both_halves(tmp_path: Path) -> None:
    path = tmp_path / "output"
    file = LimitedFile(str(path), LIMIT)
    followed = Followed(str(path), file)
    for line in numbered(50_000):
        file.write(line)
    followed.end()
    got = bytearray()
    async with aclosing(followed.read(from_now=False)) as pieces:
        async for piece in pieces:
            got.extend(piece)
    assert bytes(got) == kept(path)
    file.close()


@pytest.mark.parametrize("lines", [10, 8_000, 50_000])
async def test_who_goes_on_from_a_position(tmp_path: Path, lines: int) -> None:
    """Whether that is in the older file or in the newer one, or was discarded meanwhile."""
    path = tmp_path / "output"
    file = LimitedFile(str(path), LIMIT)
    for line in numbered(lines):
        file.write(line)
    file.close()
    again = LimitedFile(str(path), LIMIT, again=True)
    followed = Followed(str(path), again)
    followed.end()
    assert again.offset == lines * 10
    for begin in (0, 5, again.lost + 7, again.begins, again.offset - 10, again.offset):
        position, got = -1, bytearray()
        async with aclosing(followed.read_from(begin)) as pieces:
            async for at, piece in pieces:
                assert position in (-1, at)
                position = at + len(piece)
                got += piece
        assert position == again.offset
        assert bytes(got) == kept(path)[max(begin - again.lost, 0) :]
    async with aclosing(followed.read_from(None)) as pieces:
        assert [piece async for piece in pieces] == [(again.offset, b"")]
    again.close()


async def test_output_that_is_too_long_is_told_once(tmp_path: Path) -> None:
    said: list[str] = []
    output = CapturedOutput(str(tmp_path / "output"), LIMIT, said.append)
    master, slave = os.openpty()
    stdio = Stdio([os.dup(slave) for _ in range(3)], terminal=False)
    assert await output.connect(stdio, terminal=False)
    writer = stdio.fds[1]

    def write_all() -> None:
        for line in numbered(100_000):
            os.write(writer, line)
        stdio.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(output.capture)
        await trio.to_thread.run_sync(write_all)
    os.close(master)
    os.close(slave)
    assert len(said) == 1
    assert "its oldest part is discarded" in said[0]
    assert kept(tmp_path / "output").endswith(b"000099999\n")


@pytest.mark.parametrize("kind", ["output", "log"])
def test_logs_has_both_and_says_what_is_gone(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], kind: str
) -> None:
    record = tmp_path / "c1"
    record.mkdir()
    file = LimitedFile(str(record / kind), LIMIT)
    for line in itertools.islice(numbered(60_000), 60_000):
        file.write(line)
    file.close()
    words = ["--messages"] if kind == "log" else []
    assert logs.run(parse(["--root", str(tmp_path), "logs", *words, "c1"])) == 0
    out, err = capfdbinary.readouterr()
    assert out == kept(record / kind)
    remedy = b"see `output_limit` in [log]"
    assert f"the first {file.lost} bytes are gone: ".encode() + remedy in err


def test_one_that_is_opened_again_counts_on(tmp_path: Path) -> None:
    path = tmp_path / "output"
    file = LimitedFile(str(path), LIMIT)
    for line in numbered(50_000):
        file.write(line)
    file.close()
    again = LimitedFile(str(path), LIMIT, again=True)
    assert again.offset == file.offset == 500_000
    assert again.lost > 0
    again.close()
