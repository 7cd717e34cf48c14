"""Callers' descriptors: what is done with one may wait for a file system that does not answer."""

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVarTuple

import trio

_AT_ONCE = ("socket:", "/dev/", "anon_inode:", "/memfd:")

Ts = TypeVarTuple("Ts")


def may_hang(fd: int) -> bool:
    """Return whether a descriptor may be a file's: poll(2) calls a regular one ready at any time.

    fstat(2) would tell, but a file system's server may have to be asked for that.
    """
    return not (is_a_pipe(fd) or os.readlink(f"/proc/self/fd/{fd}").startswith(_AT_ONCE))


def is_a_pipe(fd: int) -> bool:
    """Return whether a descriptor is a pipe's or a FIFO's."""
    try:
        fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
    except OSError:
        return False
    return True


def apart(call: Callable[[*Ts], object], *args: *Ts) -> trio.Event:
    """Call something in a thread of its own, which nobody has to wait for.

    Returns what is set when it has returned, or raised an error, which nobody sees. Raises
    RuntimeError if there is no thread left.
    """
    done, token = trio.Event(), trio.lowlevel.current_trio_token()

    def tell(_: object) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(done.set)

    trio.lowlevel.start_thread_soon(lambda: call(*args), tell)
    return done


def close(fd: int) -> None:
    """Close a descriptor, which may send written data to a server, and wait for that."""
    if not may_hang(fd):
        os.close(fd)
        return
    try:
        trio.lowlevel.start_thread_soon(lambda: os.close(fd), lambda _: None)
    except RuntimeError:  # there is no thread left
        os.close(fd)
