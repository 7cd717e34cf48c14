"""Waiting for descriptors, of which there may be many."""

import os
import resource
import socket
from collections.abc import Iterator

import pytest

from scrun.core.ready import ready
from scrun.core.rights import receive_fds


@pytest.fixture
def pipe() -> Iterator[list[int]]:
    """A pipe's ends, with numbers that select(2) does not take."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(most[0], 3000), most[1]))
    ends = os.pipe()
    high = [os.dup2(end, 2000 + number) for number, end in enumerate(ends)]
    for fd in ends:
        os.close(fd)
    yield high
    for fd in high:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, most)


def test_what_can_be_read_and_written(pipe: list[int]) -> None:
    here, there = pipe
    assert ready([here], [there]) == (set(), {there})
    assert ready([here], seconds=0) == (set(), set())
    assert ready([here], seconds=0.001) == (set(), set())
    os.write(there, b"x")
    assert ready([here], [there]) == ({here}, {there})


def test_what_has_ended(pipe: list[int]) -> None:
    here, there = pipe
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, there)
    assert ready([here], seconds=60) == ({here}, set())
    os.dup2(null, here)
    os.close(null)
    with socket.socket() as closed:
        number = closed.fileno()
    assert ready([number], [number], 60) == ({number}, {number})


def test_a_pipe_that_nobody_reads_any_more(pipe: list[int]) -> None:
    here, there = pipe
    assert ready([here], seconds=0, ends=[there]) == (set(), set())
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, here)
    os.close(null)
    assert ready([], seconds=60, ends=[there]) == ({there}, set())


@pytest.mark.parametrize("seconds", [30 * 86400, 1e300, float("inf")])
def test_longer_than_the_kernel_counts(seconds: float, pipe: list[int]) -> None:
    here, there = pipe
    os.write(there, b"x")
    assert ready([here], seconds=seconds) == ({here}, set())


def test_no_more_descriptors_than_there_is_room_for() -> None:
    """Of a second one nobody would know."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fds = [os.open(os.devnull, os.O_RDONLY) for _ in range(2)]
        socket.send_fds(theirs, [b"x"], fds)
        data, [found], whole = receive_fds(ours, 10, 1)
        assert (data, whole) == (b"x", False)
        assert not os.get_inheritable(found)
        for fd in (*fds, found):
            os.close(fd)
