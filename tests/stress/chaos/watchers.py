"""Commands that stay open beside a container: who follows its output, types, or runs a program."""

import os
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from tests.stress.chaos.children import Call, Stream
from tests.stress.chaos.faults import DETACHED
from tests.stress.chaos.files import Looking
from tests.stress.chaos.forwards import Asking
from tests.stress.chaos.networks import Neighbour
from tests.stress.chaos.plan import Plan
from tests.stress.chaos.seen import Answer
from tests.stress.chaos.testbed import ANSWERS

if TYPE_CHECKING:
    from tests.stress.chaos.container import Container

_EXECUTED = ("sh", "-c", "echo executed; exit 5")
_NOT_RUN = "its supervisor died before the program ran; try again"
_LOOKS = 0.02
_STATUS = 9
_ENDS = 150.0
_TALKS = 0.1


def answers(plan: Plan) -> str:
    """Return all answers of a container, or a program, that gets as many lines as it has."""
    return "".join(f"got {number}\n" for number in range(1, plan.lines[0] + 1))


class Watchers:
    """The commands beside one container.

    Attributes:
        output: What is shown to who follows the container's output, if anybody does.
    """

    def __init__(self, container: "Container", nursery: trio.Nursery) -> None:
        self.output: Stream | None = None
        self._container = container
        testbed = container.testbed
        container.seen.exec_lasts = testbed.engine == "local" or testbed.launch == "shim"
        self._nursery = nursery
        self._to: Stream | None = None
        self._answers: Stream | None = None
        self._over = trio.Event()
        self._asking: Asking | None = None
        plan = container.plan
        if plan.forwards or plan.network or plan.files:
            kind = Looking if plan.files else Neighbour if plan.network else Asking
            self._asking = kind(container, nursery)

    async def follow(self) -> None:
        """Have somebody who follows what a detached container says."""
        container = self._container
        if container.plan.kind in DETACHED:
            right = Answer(0, container.seen.expected.decode())
            call = await self._watch(right, "logs", "--follow", container.id)
            self.output = call.out

    async def _watch(self, right: Answer, *words: str, stdin: int | None = None) -> Call:
        container = self._container
        call = await container.testbed.call(container.plan, container.parent, *words, stdin=stdin)

        async def run() -> None:
            done = await call.done()
            self._container.note(f"{words[0]} ended with {done.status}: {done.err}")
            answer = Answer(done.status, done.out, done.err)
            self._container.seen.watched.append((words[0], answer, right))
            self._over.set()
            if words[0] == "logs":
                self._container.seen.out = done.out.encode()

        self._nursery.start_soon(run)
        return call

    async def begin(self) -> None:
        """Have somebody who types, at the container's terminal or to a program of `exec`."""
        container = self._container
        plan = container.plan
        if self._asking is not None:
            self._nursery.start_soon(self._asking.run)
            await self._asking.works()
        lines = answers(plan)
        if plan.kind == "attach":
            master, slave = os.openpty()
            self._to = Stream(master)
            right = Answer(plan.status, lines)
            call = await self._watch(right, "attach", container.id, stdin=slave)
            while termios.tcgetattr(master)[3] & termios.ECHO:  # it is not attached yet
                if container.parent.has_ended(call.pid, 0):
                    return
                await trio.sleep(_LOOKS)
        elif plan.kind == "program":
            theirs, ours = os.pipe()
            self._to = Stream(ours)
            words = ("exec", container.id, "sh", "-c", f"{ANSWERS}; exit {_STATUS}")
            call = await self._watch(Answer(_STATUS, lines), *words, stdin=theirs)
        else:
            return
        self._answers = call.out
        await self._say(1)

    async def converse(self) -> None:
        """Say one line after the other, and wait for each answer; the fault comes meanwhile."""
        if self._to is None:
            return
        count = self._container.plan.lines[0]
        for number in range(2, count + 1):
            await self._say(number)
            await trio.sleep(_TALKS / count)

    async def end(self) -> None:
        """Say that it is over; a program ends before its container, as what is forwarded works."""
        if self._asking is not None:
            await self._asking.works()
            self._asking.may_break = True
        if self._to is not None:
            await self._write(b"end\n")
        if self._container.plan.kind == "program":
            with trio.move_on_after(_ENDS):
                await self._over.wait()

    async def _say(self, number: int) -> None:
        if self._to is None or self._answers is None:
            return
        await self._write(b"%d\n" % number)
        with trio.move_on_after(_ENDS):
            await self._answers.until(b"got %d\n" % number)

    async def _write(self, data: bytes) -> None:
        assert self._to is not None
        try:
            await self._to.write(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._container.note("nobody reads what is typed")

    async def aclose(self) -> None:
        """Type no more."""
        if self._to is not None:
            await self._to.aclose()


async def execute(container: "Container") -> None:
    """Run a program in it, again if it is told that the first one did not run."""
    for _ in range(2):
        done = await container.call("exec", after=_EXECUTED)
        container.note(f"exec: {done.status} {done.err}")
        container.seen.executed = Answer(done.status, done.out, done.err)
        if not (container.plan.fault.is_adopted and _NOT_RUN in done.err):
            return


@asynccontextmanager
async def watching(container: "Container") -> AsyncIterator[Watchers]:
    """Have the commands of a container's kind beside it; they end with it.

    Raises:
        Late: One does not end.
    """
    async with trio.open_nursery() as nursery:
        watchers = Watchers(container, nursery)
        try:
            await watchers.follow()
            yield watchers
            with trio.move_on_after(_ENDS) as patience:
                while nursery.child_tasks:
                    await trio.sleep(_LOOKS)
            if patience.cancelled_caught:
                container.seen.hangs.append(
                    f"what was open beside it does not end within {_ENDS:g} s"
                )
        finally:
            await watchers.aclose()
            nursery.cancel_scope.cancel()
