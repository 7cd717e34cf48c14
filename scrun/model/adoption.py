"""Tells whether a container lives whose supervisor has died."""

import fcntl
import os

from scrun.model.identity import is_dead
from scrun.model.record import Record, read_record


def is_held(directory: str) -> bool:
    """Tell whether somebody holds the lock of a record; looking holds nobody up who looks."""
    try:
        lock = os.open(f"{directory}/lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def held_record(directory: str) -> Record | None:
    """Return the record of a container that may live; None if it is nobody's, or stopped.

    Its lock is held: by its supervisor, or by what that has left when it died.

    Raises:
        StateError, OSError: The record cannot be read.
    """
    if not is_held(directory):
        return None
    record = read_record(directory)
    return None if record.status == "stopped" or record.supervisor is None else record


def is_on_its_way(directory: str) -> bool:
    """Tell whether a container will be adopted by a successor of its supervisor.

    What the supervisor has left holds the record's lock, and the record names one that is dead.

    Raises:
        StateError, OSError: The record cannot be read.
    """
    record = held_record(directory)
    return record is not None and record.supervisor is not None and is_dead(record.supervisor)


def living_record(directory: str) -> Record | None:
    """Return the record of a container that lives and is about to be adopted; else None.

    Only the successor knows how one has ended whose process is gone, which its engine knows.

    Raises:
        StateError, OSError: The record cannot be read.
    """
    record = held_record(directory)
    return None if record is None or _has_gone(record) else record


def _has_gone(record: Record) -> bool:
    """Tell whether the process is gone that stands for a container."""
    return bool(record.pid) and not os.path.lexists(f"/proc/{record.pid}")
