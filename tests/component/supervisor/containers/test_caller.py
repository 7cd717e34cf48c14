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
