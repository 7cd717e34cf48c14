"""Who works on a container's record: one supervisor at a time.

Whoever serves a container, or undoes what a dead supervisor has left of it, holds the lock of its
record: flock(2) on the file `lock` in it. The kernel releases it when its holder dies, however
that happens. So a free lock means that nobody works there; a held one, that somebody does,
whether or not that supervisor can be reached. The lock is on a file, not on the directory itself:
NFS locks only what is open for writing.
"""

import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from scrun.core.errors import StateError
from scrun.model.record import Record, read_record, undone
from scrun.supervisor.core.threads import in_thread

LOCK = "lock"
_STAGE_OUT = "stage_out.lock"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_PATIENCE = 20.0
_PAUSE = 0.2  # flock(2) that waits could not be given up, and would take the lock for nobody


def own(directory: str, name: str = LOCK) -> int | None:
    """Take the lock of a record that nobody holds.

    Args:
        directory: The record.
        name: Of the lock's file in it.

    Returns:
        A descriptor that holds it, close-on-exec; None when somebody else does.

    Raises:
        OSError: The record is gone, or there can be no lock.
    """
    path = os.path.join(directory, name)
    lock = os.open(path, _FLAGS, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # whoever held it may have removed the record, and another one have its name
        if os.path.samestat(os.fstat(lock), os.stat(path)):
            return lock
    except BlockingIOError:
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


async def succeed(directory: str, patience: float = _PATIENCE) -> int:
    """Become the owner of a record whose supervisor does not answer.

    It may not be dead: its socket may have been removed, or another supervisor tidies up at this
    moment. Two of them must never undo the same container, so the one that comes later waits.

    Args:
        directory: The record.
        patience: Seconds to wait for whoever works on it.

    Returns:
        A descriptor that holds the lock.

    Raises:
        StateError: Somebody is still at it.
        OSError: The record is gone, or there can be no lock.
    """
    with trio.move_on_after(patience):
        return await _taken(directory, LOCK)
    raise StateError(await in_thread(_who, directory))


@asynccontextmanager
async def staging_out(directory: str) -> AsyncIterator[tuple[int, ...]]:
    """Wait until nobody stages a container out any more, and keep others from it.

    When a supervisor is killed, what a command of its script has started goes on: two `rsync
    --delete` at the same time lose data. So the commands inherit this lock, and whoever comes next
    waits until the last of them has ended.

    Args:
        directory: The record.

    Yields:
        The descriptors that the commands have to inherit; none if there can be no lock, as in a
        root directory that was removed.
    """
    try:
        lock = await _taken(directory, _STAGE_OUT)
    except OSError:
        yield ()
        return
    try:
        yield (lock,)
    finally:
        os.close(lock)


async def _taken(directory: str, name: str) -> int:
    while True:
        lock = await in_thread(own, directory, name)
        if lock is not None:
            return lock
        await trio.sleep(_PAUSE)


def _who(directory: str) -> str:
    """Say who works on a record, and on what."""
    container = os.path.basename(directory)
    try:
        record = read_record(directory)
    except (StateError, OSError):
        record = Record(id=container)
    who = f"supervisor {record.supervisor.pid}" if record.supervisor else "another supervisor"
    return f"container {container}: {who} is still undoing it ({undone(record)}); try again later"
