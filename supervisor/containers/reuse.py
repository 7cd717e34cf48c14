"""Ids that may be used again: a container that is gone without `delete` does not hold its own.

A job that is requeued, after a preemption or the failure of a node, runs its script again, with
the same ids. Slurm has then ended all that ran in it before, `scrun run` and its supervisor too.
"""

from collections.abc import Awaitable, Callable

from scrun.core.errors import ContainerExists, ScrunError
from scrun.model.record import LOST, Record, read_record
from scrun.supervisor.containers.records import make_record
from scrun.supervisor.core.ownership import is_owned

_LOST = LOST["org.scrun.message"]


async def make_again(
    directory: str, socket: str, new: Record, delete: Callable[[], Awaitable[None]]
) -> int:
    """Make a record (see `make_record`), where necessary in the place of one that nobody needs.

    Args:
        directory: Where.
        socket: The name of this supervisor.
        new: The record.
        delete: Deletes the container that has the id.

    Returns:
        The descriptor that holds its lock.

    Raises:
        ContainerExists: The id is taken.
        ScrunError: The old one cannot be deleted, or the new one not be made.
    """
    try:
        return make_record(directory, socket, new)
    except ContainerExists:
        try:
            old = read_record(directory)
            is_over = _is_of_earlier_run(old, new) or _is_lost(old, directory)
        except (ScrunError, OSError):
            is_over = False  # what is not known is not dead
        if not is_over:
            raise
    await delete()
    return make_record(directory, socket, new)


def _is_lost(old: Record, directory: str) -> bool:
    """Tell whether nobody works on a container that did not end, nor will do so."""
    ended = old.status == "stopped" and old.annotations.get("org.scrun.message") != _LOST
    return not ended and not is_owned(directory)


def _is_of_earlier_run(old: Record, new: Record) -> bool:
    """Tell whether a container was called in the same job, before it was requeued."""
    job, run = _run(new)
    return bool(job) and _run(old)[0] == job and _run(old)[1] < run


def _run(record: Record) -> tuple[str, int]:
    called = record.engine_settings
    restarts = called.get("restarts", "")
    return called.get("called_in", ""), int(restarts) if restarts.isdecimal() else 0
