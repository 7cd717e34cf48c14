"""What a container has used, for its record."""

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from scrun.core.times import of_stamp
from scrun.model.record import Record
from scrun.model.usage import STARTED, Usage, given
from scrun.supervisor.contracts.engine import Job


def used(job: Job | None, record: Record, resources: Mapping[str, Any]) -> Usage | None:
    """Return what a container has used that has ended just now; None if nothing is known.

    Args:
        resources: `linux.resources` of its config.json.
    """
    usage = None if job is None else job.usage
    if usage is None or job is None:
        return None
    cpus, limit = given(job.environment, resources if record.engine == "local" else {})
    wall = usage.wall
    if wall is None and (started := of_stamp(record.annotations.get(STARTED, ""))) is not None:
        wall = max(0.0, time.time() - started)
    return msgspec.structs.replace(
        usage, user=_short(usage.user), system=_short(usage.system), wall=_short(wall),
        cpus=cpus, limit=limit or usage.limit,
    )  # fmt: skip


def _short(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
