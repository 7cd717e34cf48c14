"""Threads for all that may hang: file systems of users and sites, and the name service.

A hung thread cannot be ended, only abandoned. So each container and each connection has threads of
its own (`own_threads`), and hung ones take none away from the others. trio's forty shared threads
were used up after forty creates on a hung file system.
"""

import errno
import os
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar, TypeVarTuple

import trio

from scrun.core.errors import ScrunError
from scrun.supervisor.core.mounts import seen_mounts

_MOST = 8  # for one container or connection
_PATIENCE = 30.0
_MOMENT = 0.0001
_limiter: ContextVar[trio.CapacityLimiter | None] = ContextVar("threads", default=None)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def own_threads() -> None:
    """Give the calling task, and tasks that it starts from now on, threads of their own."""
    _limiter.set(trio.CapacityLimiter(_MOST))


async def in_thread(call: Callable[[*Ts], T], *args: *Ts, abandon: bool = False) -> T:
    """Call a function in a thread, which sees the mounts of the container that it is for.

    A cancellation may `abandon` functions that just read. Those that make or remove something must
    finish, because nobody would undo that.
    """
    return await trio.to_thread.run_sync(
        _called,
        call,
        *args,
        thread_name=getattr(call, "__name__", None),
        abandon_on_cancel=abandon,
        limiter=_limiter.get(),
    )


def _called(call: Callable[[*Ts], T], *args: *Ts) -> T:
    with seen_mounts().entered():
        return call(*args)


async def look(
    what: str,
    call: Callable[[*Ts], T],
    *args: *Ts,
    failure: type[ScrunError] = ScrunError,
    patience: float | None = None,
) -> T:
    """Call a function that only reads, in a thread, for `patience` seconds, or raise `failure`."""
    patience = _PATIENCE if patience is None else patience
    with trio.move_on_after(patience):
        return await in_thread(call, *args, abandon=True)
    raise failure(f"{what}: the file system did not answer for {patience:g} s")


def in_last_thread(call: Callable[[], T]) -> T:
    """Call a function in a thread that ends with it, and so may enter namespaces. Blocks.

    Raises OSError if there are too many processes; or what the function raises.
    """
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    try:
        thread.start()
    except RuntimeError as refused:
        raise OSError(errno.EAGAIN, str(refused)) from None
    thread.join()
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):  # for some microseconds
        time.sleep(_MOMENT)  # pidfds of threads, which would tell, are Linux 6.9's
    for error in errors:
        raise error
    return results[0]
