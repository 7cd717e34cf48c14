"""The connection of a `create` that waits."""

import os
import socket

import pytest
import trio

from scrun.supervisor.containers.caller import Caller
from tests.harness.processes import descriptors


@pytest.mark.usefixtures("no_descriptor_stays")
async def test_descriptors_that_nobody_asked_for_are_not_kept() -> None:
    """The lock of its pid file comes alone; the kernel drops what there is no room for."""
    ours, theirs = socket.socketpair()
    readable, writable = os.pipe()
    connection = trio.socket.from_stdlib_socket(ours)
    caller = Caller(connection)
    before = descriptors()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(caller.listen)
        socket.send_fds(theirs, [b"1\n"], [readable, writable])
        await caller.anchor_known.wait()
        assert len(descriptors()) == len(before) + 1
        assert caller.lock is not None
        theirs.close()
    caller.release()
    connection.close()
    os.close(readable)
    os.close(writable)


async def test_a_line_without_end() -> None:
    """It is not a caller of ours, and nothing more of it is read."""
    ours, theirs = socket.socketpair()
    with trio.socket.from_stdlib_socket(ours) as connection:
        caller = Caller(connection)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(caller.listen)
            there = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
            await there.send_all(b"1" * 5000)
            with trio.fail_after(10):
                await caller.gone.wait()
            await there.aclose()
        assert not caller.anchor_known.is_set()
