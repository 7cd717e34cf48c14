"""Ids that may be used again: a container that is gone without `delete` does not hold its own.

A job that is requeued, after a preemption or the failure of a node, runs its script again, with
the same ids. Slurm has then ended all that ran in it before, `scrun run` and its supervisor too.
"""

from collections.abc import Mapping

from scrun.core.errors import ScrunError
from scrun.model.adoption import is_held
from scrun.model.lost import LOST
from scrun.model.record import Record, read_record

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
