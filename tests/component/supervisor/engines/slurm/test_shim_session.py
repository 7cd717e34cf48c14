"""A program of `exec` by a shim, which a test plays."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import trio

from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.engine import Program
from scrun.supervisor.core.deposits import no_deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.engines.slurm.shim_session import begun, resumed
from scrun.supervisor.wire.frames import DATA, END, EVENT, REPLY
from tests.component.supervisor.nodes.test_resumed import answer, hello, left
from tests.harness import users
from tests.harness.peer import Said, talking

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")

ENV = ChildEnv({"PATH": users.PATH})


class Output(NamedTuple):
    """A pipe: where the program writes, and what it has written."""

    writable: int
    said: Callable[[], bytes]


@contextmanager
def output() -> Iterator[Output]:
    readable, writable = os.pipe()
    os.set_blocking(readable, False)

    def said() -> bytes:
        try:
            return os.read(readable, 100)
        except BlockingIOError:
            return b""

    yield Output(writable, said)
    os.close(readable)
    os.close(writable)


def program(out: Output, running: Callable[[], None]) -> Program:
    return Program(
        process={}, stdio=(out.writable,) * 3, terminal=False, program_is_known=True,
        running=running, deposit=no_deposit(),
    )  # fmt: skip


def ended(target: str) -> bytes:
    facts = {"status": 0, "memory": False, "lost": False}
    return json.dumps({"event": "ended", "target": target, **facts}).encode()


async def test_what_it_says_is_seen_when_a_successor_would_know_it() -> None:
    """Also if that comes with the reply: who has seen it may kill the supervisor right then."""
    before: list[bytes] = []
    with output() as out:
        async with talking(direct=True) as (shim, peer), trio.open_nursery() as nursery:

            @nursery.start_soon
            async def play() -> None:
                call = await peer.call("exec")
                number = call["streams"]["stdout"]
                await peer.send_at_once(
                    (REPLY, 0, json.dumps({"call": call["call"], "pid": 7}).encode()),
                    (DATA, number, b"said\n"),
                    (END, number, b""),
                    (EVENT, 0, ended(call["id"])),
                )

            one = program(out, lambda: before.append(out.said()))
            with trio.fail_after(5):
                ending = await begun(shim, "c", ENV, one).run()
        assert before == [b""]
        assert (ending.status, out.said()) == (0, b"said\n")


async def test_one_that_the_runtime_cannot_run() -> None:
    """Its ending has the runtime's words, and nobody is told that it runs."""
    told: list[int] = []
    with output() as out:
        async with talking(direct=True) as (shim, peer), trio.open_nursery() as nursery:

            @nursery.start_soon
            async def play() -> None:
                call = await peer.call("exec")
                log = json.dumps({"level": "error", "msg": "exec: no such file or directory"})
                await peer.reply(call, error="crun failed", log=log)

            with trio.fail_after(5):
                ending = await begun(shim, "c", ENV, program(out, lambda: told.append(1))).run()
    assert (ending.status, ending.reason, told) == (127, "not-found", [])
    assert ending.text == "the program could not be started: exec: no such file or directory"


async def test_one_that_a_predecessor_has_begun() -> None:
    """It can get signals when the shim goes on with it, with what was not written before."""
    told: list[Mapping[int, int]] = []
    with output() as out:
        fds = {"stdout": os.dup(out.writable)}
        found = Inheritance("c", {"target": "exec-1", "streams": {"stdout": 5}}, fds)
        async with left() as (shim, peer), trio.open_nursery() as nursery:

            @nursery.start_soon
            async def play() -> None:
                await answer(peer, 1, {"exec-1": {"started": True}})
                await peer.send_at_once(
                    (DATA, 5, b"said\n"), (END, 5, b""), (EVENT, 0, ended("exec-1"))
                )

            async def resume(target: str, written: Mapping[int, int]) -> None:
                await shim.resume(hello(1), {target: "c"}, written, None)
                told.append(written)

            session = resumed(
                shim, found, no_deposit(), ENV, Said().journal, resume, lambda: told.append({})
            )
            with trio.fail_after(5):
                ending = await session.run()
        assert told == [{5: 0}, {}]
        assert (ending.status, out.said(), fds) == (0, b"said\n", {})
