"""A program of `exec` by a shim, which a test plays."""

import json
import os

import pytest
import trio

from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.engine import Program
from scrun.supervisor.core.deposits import no_deposit
from scrun.supervisor.engines.slurm.shim_session import begun
from scrun.supervisor.wire.frames import DATA, END, EVENT, REPLY
from tests.harness import users
from tests.harness.peer import talking

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")

ENV = ChildEnv({"PATH": users.PATH})


async def test_what_it_says_is_seen_when_a_successor_would_know_it() -> None:
    """Also if that comes with the reply: who has seen it may kill the supervisor right then."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    null = os.open(os.devnull, os.O_RDWR)
    before: list[bytes] = []

    def running() -> None:
        try:
            before.append(os.read(readable, 100))
        except BlockingIOError:
            before.append(b"")

    async with talking(direct=True) as (shim, peer), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def answer() -> None:
            call = await peer.call("exec")
            number, ended = call["streams"]["stdout"], {"status": 0, "memory": False}
            said = {"event": "ended", "target": call["id"], "lost": False, **ended}
            await peer.send_at_once(
                (REPLY, 0, json.dumps({"call": call["call"], "pid": 7}).encode()),
                (DATA, number, b"said\n"),
                (END, number, b""),
                (EVENT, 0, json.dumps(said).encode()),
            )

        stdio = (null, writable, null)
        program = Program(
            process={}, stdio=stdio, terminal=False, program_is_known=True, running=running,
            deposit=no_deposit(),
        )  # fmt: skip
        with trio.fail_after(5):
            ending = await begun(shim, "c", ENV, program).run()
    assert before == [b""]
    assert (ending.status, os.read(readable, 100)) == (0, b"said\n")
    for fd in (readable, writable, null):
        os.close(fd)
