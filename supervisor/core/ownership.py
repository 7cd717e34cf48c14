"""Ownership of records: one supervisor at a time works on a container.

A supervisor that serves a container or cleans up after a dead one holds the lock of the record:
flock(2) on the file `lock` in it. The kernel releases it when the holder dies. So a free lock
means that nobody works there; a held one, that somebody does, even if it cannot be reached.
The lock is on a file, not on the directory: NFS locks only what is open for writing.
"""

import fcntl
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import trio

from scrun.core.errors import StateError
from scrun.model.record import Record, read_record, undone
from scrun.supervisor.core.threads import in_thread

LOCK = "lock"
_STAGE_OUT = "stage_out.lock"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_PATIENCE = 20.0
_PAUSE = 0.2  # a blocking flock(2) cannot be cancelled, and might take the lock afterwards


def own(directory: str, name: str = LOCK, before: Callable[[], None] | None = None) -> int | None:
    """Take the lock of a record, if it is free; return a descriptor that holds it, or None.

    `before` is called when it is free, and still so for those who look. Somebody else may call the
    same at that moment, and become the owner. Raises OSError if the record is gone, or cannot be
    locked.
    """
    path = os.path.join(directory, name)
    lock = os.open(path, _FLAGS, 0o600)
    try:
        if before is not None:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if _is_at(lock, path):
                before()
            # of several that do the same, the last one gets it: a failure releases a shared lock
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(lock, path):
            return lock
    except BlockingIOError:
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _is_at(lock: int, path: str) -> bool:
    """Tell whether it is still there: its last holder may have removed the record.

    Another record may have the name then. Raises OSError if there is no lock at the path.
    """
    return os.path.samestat(os.fstat(lock), os.stat(path))


def release(lock: int) -> None:
    """Release a lock at once, also if our keeper has it still, and close the descriptor."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


async def take_over(
    directory: str, patience: float = _PATIENCE, before: Callable[[], None] | None = None
) -> int:
    """Become the owner of a record whose supervisor does not answer; return the lock.

    That one may be alive without its socket, or another one may be cleaning up. Two supervisors
    must never clean up the same container, so the later one waits, for `patience` seconds.

    Raises:
        StateError: Another supervisor still works on it.
        OSError: The record is gone, or cannot be locked.
    """
    with trio.move_on_after(patience):
        return await _wait_for_lock(directory, LOCK, before)
    raise StateError(await in_thread(_describe_owner, directory))


@asynccontextmanager
async def staging_out(directory: str) -> AsyncIterator[tuple[int, ...]]:
    """Hold the lock for staging a container out; wait until nobody else has it.

    When a supervisor is killed, the commands of its script go on: two `rsync --delete` at the same
    time lose data. So the commands inherit this lock, and the next supervisor waits until the last
    of them has ended. Yields the descriptors for that; none if the record cannot be locked, as in
    a root directory that was removed.
    """
    try:
        lock = await _wait_for_lock(directory, _STAGE_OUT)
    except OSError:
        yield ()
        return
    try:
        yield (lock,)
    finally:
        os.close(lock)


async def _wait_for_lock(
    directory: str, name: str, before: Callable[[], None] | None = None
) -> int:
    while True:
        lock = await in_thread(own, directory, name, before)
        if lock is not None:
            return lock
        await trio.sleep(_PAUSE)


def _describe_owner(directory: str) -> str:
    """Say who works on a record, and on what."""
    container = os.path.basename(directory)
    try:
        record = read_record(directory)
    except (StateError, OSError):
        record = Record(id=container)
    who = f"supervisor {record.supervisor.pid}" if record.supervisor else "another supervisor"
    what = undone(record)
    return f"container {container}: {who} is still cleaning it up ({what}); try again later"
