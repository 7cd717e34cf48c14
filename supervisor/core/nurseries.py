"""Nurseries that nobody sees from outside, and walls between those who share a supervisor.

A nursery raises a group, even of one error (trio's strict exception groups). Whoever calls a
context manager that has one inside does not know of it, and catches the error by its type.

And an error of one task cancels all others of its nursery, so a fault in one container or
connection must not get as far as the supervisor's.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from scrun.core.errors import leaves
from scrun.supervisor.core.threads import own_threads
from scrun.supervisor.log.supervisor_log import fault


@asynccontextmanager
async def unwrapped() -> AsyncIterator[trio.Nursery]:
    """Open a nursery whose only error is raised as itself, and not as a group of one.

    A cancellation beside that error goes with it: an error that comes out of a cancelled block
    does so without any nursery. Several errors stay a group.
    """
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        errors = [leaf for leaf in leaves(group) if not isinstance(leaf, trio.Cancelled)]
        if len(errors) != 1:
            raise
        (error,) = errors
        context = error.__context__
        try:
            raise error
        finally:
            # else a traceback would show the group, which has this very error in it
            error.__context__ = context
            del error, errors


async def bulkhead(what: str, task: Callable[[], Awaitable[object]]) -> None:
    """Run a task whose faults are nobody else's: they go to the supervisor's log.

    Nor are the threads that it waits for.

    Args:
        what: Whose task it is, for the log.
        task: It.
    """
    own_threads()
    try:
        await task()
    except* Exception as group:
        fault(what, group)


class Tasks:
    """What goes on beside a container, such as the programs of `exec`.

    None of it ends the container by a fault of its own, and nothing begins any more when the
    container is over.
    """

    def __init__(self, what: str) -> None:
        """Nothing can begin yet.

        Args:
            what: Whose tasks they are, for the log.
        """
        self._what = what
        self._nursery: trio.Nursery | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Let tasks begin as long as the block lasts; those that are left then are cancelled."""
        async with unwrapped() as nursery:
            self._nursery = nursery
            try:
                yield
            finally:
                self.end()

    def begin(self, task: Callable[[], Awaitable[object]]) -> bool:
        """Begin a task; return whether that is possible."""
        if self._nursery is None:
            return False
        self._nursery.start_soon(bulkhead, self._what, task)
        return True

    def end(self) -> None:
        """Cancel them, and let none begin any more."""
        nursery, self._nursery = self._nursery, None
        if nursery is not None:
            nursery.cancel_scope.cancel()
