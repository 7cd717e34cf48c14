"""The first process of a container, if it is not ours; or those of its tasks.

A container that is created only when it runs needs until its start what it is to run with, and its
descriptors, for a successor. After that there is a process in the foreground, which has these.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from scrun.model.states import Ending, taken
from scrun.supervisor.children.persistent import STDIO
from scrun.supervisor.contracts.engine import Step
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.nurseries import until, unwrapped


class WatchedProcess:
    """See `first_process.FirstProcess`; `begun` is set when it is started, or has ended."""

    pid = 0  # nobody here needs it
    is_started = False

    def __init__(
        self,
        begin: Callable[[], Awaitable[None]],
        how_it_ends: Callable[["WatchedProcess"], Awaitable[Ending]],
    ) -> None:
        self.begun = trio.Event()
        self._begin = begin
        self._how_it_ends = how_it_ends
        self.ending: Ending | None = None
        self._ended = trio.Event()
        self._starting = False

    @property
    def over(self) -> bool:
        return self.ending is not None

    async def start(self) -> None:
        self._starting = True
        try:
            async with until(self._ended.wait):
                await self._begin()
        finally:
            self._starting = False
            self.begun.set()

    async def ended(self) -> Ending:
        await self._ended.wait()
        return self.ending or taken(
            "scrun-failure", "the process that created the container was ended"
        )

    async def started(self) -> None:
        """Wait for a call of `start` that is under way: a program may end before its reply."""
        if self._starting:
            await self.begun.wait()

    async def runs(self) -> bool:
        """Tell whether it is started, and has not ended; waits as `started`."""
        await self.started()
        return self.begun.is_set() and not self.over

    async def watch(self) -> None:
        try:
            self.ending = await self._how_it_ends(self)
        finally:
            self._ended.set()
            self.begun.set()


_OF_STEP = ("bundle", "arguments", "terminal", "program", "program_is_known", "variables")


def hold_step(deposit: Deposit, step: Step) -> None:
    """Keep what a container will run with."""
    stdio = {f"{STDIO}{number}": fd for number, fd in enumerate(step.stdio)}
    deposit.hold(stdio, late={name: getattr(step, name) for name in _OF_STEP})


def is_deferred(found: Inheritance) -> bool:
    """Tell whether a container is created only when it runs."""
    return "late" in found.facts


class GoesOn(Protocol):
    """How a job goes on with what another supervisor has begun."""

    async def __call__(self, step: Step, *, task_status: trio.TaskStatus[bool]) -> Ending:
        """Wait for the end; tell as `task_status`, when that is known, whether it runs."""


class DeferredContainer:
    """A container of another supervisor's, which has died."""

    def __init__(
        self,
        found: Inheritance,
        deposit: Deposit,
        run: Callable[[Step], Awaitable[Ending]],
        go_on: GoesOn | None,
        start: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Take its descriptors over.

        `go_on` goes on with it, if the other has begun to run it. `start` starts what the other
        has created, if that was not the same; it is called again, for all that we know.
        """
        self._start = start
        self._run, self._go_on = run, go_on
        self._stdio = [found.take(name) for name in [*found.fds] if name.startswith(STDIO)]
        self._start_asked = trio.Event()
        self._runs = trio.Event()
        self._over = trio.Event()
        self._ending: Ending | None = None
        if go_on is not None:  # then a process has got them
            self._close_streams()
            deposit.drop(STDIO)
        stdin, stdout, stderr = self._stdio or (-1, -1, -1)
        self._step = Step(
            stdio=(stdin, stdout, stderr),
            running=self._begins_to_run,
            **found.facts["late"],
        )

    @asynccontextmanager
    async def resumed(self) -> AsyncIterator[WatchedProcess]:
        first = WatchedProcess(self._begin, lambda _: self._ended())
        try:
            async with unwrapped() as nursery:
                if self._go_on is not None:
                    runs = await nursery.start(self._watch)
                    first.is_started = runs and self._start is None
                nursery.start_soon(first.watch)
                try:
                    yield first
                finally:
                    nursery.cancel_scope.cancel()
        finally:
            self._close_streams()

    async def _watch(self, task_status: trio.TaskStatus[bool]) -> None:
        assert self._go_on is not None
        self._ending = await self._go_on(self._step, task_status=task_status)
        self._over.set()

    async def _ended(self) -> Ending:
        if self._go_on is None:
            await self._start_asked.wait()
            return await self._run(self._step)
        await self._over.wait()
        assert self._ending is not None
        return self._ending

    async def _begin(self) -> None:
        """Run it, unless it runs already."""
        self._start_asked.set()
        if self._start is not None:
            await self._start()
        await self._runs.wait()

    def _begins_to_run(self) -> None:
        self._close_streams()
        self._runs.set()

    def _close_streams(self) -> None:
        while self._stdio:
            os.close(self._stdio.pop())
