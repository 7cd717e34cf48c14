"""What a container asks of its job, and whether the job of another one can serve it. Pure."""

import math
import re
from collections.abc import Mapping, Sequence

import msgspec

# Of the time limit that Slurm has chosen, for a container that asks for none
_MOST_OF_IT = 0.9
# Plugins of Slurm's read these when a job is requested, credentials for the nodes among them
_OF_PLUGINS = ("SPANK_", "_SLURM_SPANK_", "KRB5CCNAME")
_TIME = re.compile(r"(?:(\d{1,6})-)?(\d{1,9})(?::(\d{1,6}))?(?::(\d{1,6}))?", re.ASCII)
_NO_LIMIT = ("unlimited", "infinite", "-1", "0")


class Needs(msgspec.Struct, frozen=True):
    """What a container asks of its job.

    Attributes:
        options: Options of salloc, without those that only describe this container.
        variables: Variables of `create` that Slurm's plugins may read.
        seconds: The time limit that it asks for; None if it leaves that to Slurm.
    """

    options: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()
    seconds: float | None = None


def needs_of(
    options: Sequence[str], environment: Mapping[str, str], wanted: Mapping[str, str]
) -> Needs | None:
    """Return what a container asks of its job; None if no other job can do."""
    if wanted.get("SCRUN_DEPENDENCY"):
        return None
    found = {name: text for name, text in environment.items() if name.startswith(_OF_PLUGINS)}
    seconds = None
    if limit := wanted.get("SCRUN_TIMELIMIT"):
        seconds = seconds_of_limit(limit)
        seconds = math.inf if seconds is None else seconds  # salloc knows what it means
    return Needs(tuple(options), tuple(sorted(found.items())), seconds)


def fits(asked: Needs, had: Needs, limit: float | None, used: float) -> bool:
    """Tell whether a container may use a job that was requested for another one.

    Args:
        limit: The job's time limit in seconds, `inf` for none; None if it is not known.
    """
    if asked != had or limit is None:
        return False
    least = limit * _MOST_OF_IT if asked.seconds is None else asked.seconds
    return limit - used >= least


def seconds_of_limit(text: str) -> float | None:
    """Parse a time limit of salloc(1) or squeue(1); None for other text, `inf` for no limit."""
    if text.lower() in _NO_LIMIT:
        return math.inf
    found = _TIME.fullmatch(text)
    if not found:
        return None
    days, *parts = found.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None or len(numbers) == 3:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    else:
        hours, minutes, seconds = (0, *numbers, 0)[:3]
    return int(days or 0) * 86400.0 + hours * 3600 + minutes * 60 + seconds
