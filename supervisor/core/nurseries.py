"""Nurseries as implementation details, and isolation of containers that share a supervisor.

A nursery raises a group, even of one error (trio's strict exception groups). Callers of a context
manager with a nursery inside do not know of that, and catch errors by their type.

An error in one task cancels all others of its nursery, so an error in one container or connection
must not reach the supervisor's nursery.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TypeVar

import trio

from scrun.core.errors import EngineError, leaves
from scrun.supervisor.core.threads import own_threads
from scrun.supervisor.log.supervisor_log import fault

_T = TypeVar("_T")


class unwrapped:
    """A nursery that raises a single error as itself, not as a group of one.

    A cancellation beside that error is dropped, as when an error leaves a cancelled block without
    a nursery. Several errors stay a group. An idle container has 17 of these open, so they are not
    generators: these took 1 KiB more each.
    """

    __slots__ = ("_manager",)

    async def __aenter__(self) -> trio.Nursery:
        self._manager = trio.open_nursery()
        return await self._manager.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:  # fmt: skip
        try:
            return await self._manager.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as group:
            errors = [leaf for leaf in leaves(group) if not isinstance(leaf, trio.Cancelled)]
            if len(errors) != 1:
                raise
            (single,) = errors
            context = single.__context__
            try:
                raise single
            finally:
                # else a traceback would show the group, too, with the same error in it
                single.__context__ = context
                del single, errors


@asynccontextmanager
async def until(
    happens: Callable[[], Awaitable[object]], seconds: float = 0
) -> AsyncIterator[None]:
    """Cancel the block when something has happened, or some seconds later."""
    async with unwrapped() as nursery:

        @nursery.start_soon
        async def end() -> None:
            await happens()
            await trio.sleep(seconds)
            nursery.cancel_scope.cancel()

        yield
        nursery.cancel_scope.cancel()


async def for_all(
    things: Sequence[_T], do: Callable[[_T], Awaitable[object]], *, cancels: bool = False
) -> None:
    """Do something for several at once; one that fails cancels the others only if it `cancels`.

    Raises EngineError of the first one that failed.
    """
    if len(things) == 1:  # a task and a nursery take 4 KiB of an idle container
        await do(things[0])
        return
    errors: list[EngineError] = []
    async with unwrapped() as nursery:

        async def one(thing: _T) -> None:
            try:
                await do(thing)
            except EngineError as error:
                errors.append(error)
                if cancels:
                    nursery.cancel_scope.cancel()

        for thing in things:
            nursery.start_soon(one, thing)
    if errors:
        raise errors[0]


async def bulkhead(what: str, task: Callable[[], Awaitable[object]]) -> None:
    """Run a task in isolation: its errors go to the supervisor's log, and it has own threads."""
    own_threads()
    try:
        await task()
    except* Exception as group:
        fault(what, group)


class Tasks:
    """Tasks beside a container, such as the programs of `exec`.

    Their errors do not end the container, and no task starts any more once it has ended.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._nursery: trio.Nursery | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Permit tasks while the block runs; cancel the remaining ones at its end."""
        async with unwrapped() as nursery:
            self._nursery = nursery
            try:
                yield
            finally:
                self.end()

    def begin(self, task: Callable[[], Awaitable[object]]) -> bool:
        """Start a task; return whether that was possible."""
        if self._nursery is None:
            return False
        self._nursery.start_soon(bulkhead, self._what, task)
        return True

    def end(self) -> None:
        """Cancel the tasks, and permit no more."""
        nursery, self._nursery = self._nursery, None
        if nursery is not None:
            nursery.cancel_scope.cancel()
