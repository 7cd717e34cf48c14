"""A successor knows all that a tool has said, whatever its supervisor had read when it died."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from scrun.supervisor.children.pumps import MEMORY, PIPE, Transcript, recorded

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")


@contextmanager
def kept() -> Iterator[dict[str, int]]:
    """Duplicates of what a deposit would have; those that a test takes are its own."""
    fds: dict[str, int] = {}
    yield fds
    for fd in fds.values():
        os.close(fd)


async def heard(transcript: Transcript, until: int) -> list[str]:
    """What comes, until there are so many lines."""
    found: list[str] = []
    enough = trio.Event()

    def take(line: str) -> None:
        found.append(line)
        if len(found) == until:
            enough.set()

    async with transcript.received(take):
        with trio.fail_after(10):
            await enough.wait()
    return found


async def test_the_successor_begins_with_the_first_line() -> None:
    first: list[str] = []
    came = trio.Event()

    def take(line: str) -> None:
        first.append(line)
        came.set()

    with kept() as fds:

        def hold(found: object) -> None:
            assert isinstance(found, dict)
            fds.update({name: os.dup(fd) for name, fd in found.items()})

        async with recorded(take, hold) as said:
            os.write(said, b"one\ntw")
            with trio.fail_after(10):
                await came.wait()
            other = os.dup(said)
        assert first[0] == "one"
        os.write(other, b"o\nthr")
        again = Transcript(fds.pop(PIPE), fds.pop(MEMORY))
        assert again.before == ["one"]
        os.write(other, b"ee\nfour")
        os.close(other)
        assert await heard(again, 3) == ["two", "three", "four"]


async def test_what_nobody_has_read_is_there() -> None:
    readable, writable = os.pipe()
    os.write(writable, b"one\ntwo\n")
    os.close(writable)
    memory = os.memfd_create("test")
    transcript = Transcript(readable, memory)
    assert transcript.before == []
    assert await heard(transcript, 2) == ["one", "two"]


async def test_one_that_says_more_than_is_kept_goes_on() -> None:
    readable, writable = os.pipe()
    memory = os.memfd_create("test")
    os.truncate(memory, 1 << 20)
    transcript = Transcript(readable, memory)
    os.write(writable, b"\nlast\n")
    os.close(writable)
    assert (await heard(transcript, 2))[-1] == "last"
