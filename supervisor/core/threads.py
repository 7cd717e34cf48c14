"""Whatever may hang runs in a thread: file systems of users and sites, and the name service.

A thread that hangs cannot be ended, it can only be abandoned. So each container and each
connection has threads of its own (`own_threads`): those that hang for one take none away from
the others. trio's own forty for everybody were all gone after forty creates on a hung file system.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar, TypeVarTuple

import trio

from scrun.core.errors import ScrunError

_MOST = 8  # at a time, for one container or connection
_PATIENCE = 30.0
_limiter: ContextVar[trio.CapacityLimiter | None] = ContextVar("threads", default=None)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def own_threads() -> None:
    """Give the task that calls, and those that it starts from now on, threads of their own."""
    _limiter.set(trio.CapacityLimiter(_MOST))


async def in_thread(call: Callable[[*Ts], T], *args: *Ts, abandon: bool = False) -> T:
    """Call a function in a thread.

    Args:
        call: It.
        args: Its arguments.
        abandon: Whether a cancellation leaves it alone with its work: for what only looks. What
            makes or removes something has to come to its end, because nobody would undo it.
    """
    return await trio.to_thread.run_sync(
        call, *args, abandon_on_cancel=abandon, limiter=_limiter.get()
    )


async def look(
    what: str,
    call: Callable[[*Ts], T],
    *args: *Ts,
    failure: type[ScrunError] = ScrunError,
    patience: float | None = None,
) -> T:
    """Call a function that only looks at something, and wait for it for a limited time.

    Args:
        what: What it looks at, for the error.
        call: It.
        args: Its arguments.
        failure: The error of one that does not answer.
        patience: Seconds.

    Raises:
        ScrunError: There was no answer in time.
    """
    patience = _PATIENCE if patience is None else patience
    with trio.move_on_after(patience):
        return await in_thread(call, *args, abandon=True)
    raise failure(f"{what}: the file system did not answer for {patience:g} s")
