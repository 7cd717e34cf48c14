"""Tells whether a container lives whose supervisor has died, and whether its id is free.

A container that is gone without `delete` does not hold its id. A job that is requeued, after a
preemption or the failure of a node, runs its script again, with the same ids. Slurm has then ended
all that ran in it before, `scrun run` and its supervisor too.
"""

import fcntl
import os
from collections.abc import Mapping

from scrun.core.errors import ScrunError
from scrun.model.identity import is_dead
from scrun.model.lost import LOST
from scrun.model.record import Record, read_record


def is_held(directory: str) -> bool:
    """Tell whether somebody holds the lock of a record; looking holds nobody up who looks."""
    return is_locked(f"{directory}/lock")


def is_locked(path: str) -> bool:
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
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
    """Return the record of a container that may live, as its lock is held; else None."""
    if not is_held(directory):
        return None
    record = read_record(directory)
    return None if record.status == "stopped" or record.supervisor is None else record


def is_on_its_way(directory: str) -> bool:
    """Tell whether a container will be adopted: its lock is held, its supervisor dead."""
    record = held_record(directory)
    return record is not None and record.supervisor is not None and is_dead(record.supervisor)


def living_record(directory: str) -> Record | None:
    """Return the record of a container that lives and is about to be adopted; else None.

    Only the successor knows how one has ended whose process is gone, which its engine knows.
    """
    record = held_record(directory)
    if record and record.pid and not os.path.lexists(f"/proc/{record.pid}"):
        return None
    return record


_LOST = LOST["org.scrun.message"]


def called_in(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the job in which a container is called, and how often that had been requeued."""
    job, restarts = (environment.get(f"SLURM_{name}", "") for name in ("JOB_ID", "RESTART_COUNT"))
    return {"called_in": job, "restarts": restarts}


def is_over(directory: str, environment: Mapping[str, str]) -> bool:
    """Tell whether a caller may use the id of a record, whose container is gone.

    So it is if nobody works on a container that did not end, nor will do so, and if it was called
    in the caller's job, before that was requeued. What is not known is not dead.
    """
    try:
        old = read_record(directory)
        return _is_of_earlier_run(old, called_in(environment)) or _is_lost(old, directory)
    except (ScrunError, OSError):
        return False


def _is_lost(old: Record, directory: str) -> bool:
    ended = old.status == "stopped" and old.annotations.get("org.scrun.message") != _LOST
    return not ended and not is_held(directory)


def _is_of_earlier_run(old: Record, now: Mapping[str, str]) -> bool:
    before = old.engine_settings
    is_same = now["called_in"] and now["called_in"] == before.get("called_in")
    return bool(is_same) and _count(before.get("restarts", "")) < _count(now["restarts"])


def _count(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else 0
