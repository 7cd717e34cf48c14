"""Parses Slurm's notation of time spans. Pure."""

import re

UNLIMITED = -1
NOT_A_TIME = -2

_DAYS = re.compile(r"(\d+)-(?:(\d+)(?::(\d+)(?::(\d+))?)?)?", re.ASCII)
_CLOCK = re.compile(r"(\d+)(?::(\d+)(?::(\d+))?)?", re.ASCII)
_DIGITS = 9  # in a number: more would not fit into Slurm's 32 bits


def minutes(text: str) -> int:
    """Parse a time span as described for `slurm.time_str2mins` in scrun(1).

    The formats are `days-[hours[:minutes[:seconds]]]`, `hours:minutes:seconds`,
    `minutes[:seconds]`, `-1`, `INFINITE` and `UNLIMITED`; words in any case. Seconds round up.

    Returns:
        Minutes; `UNLIMITED`; or `NOT_A_TIME` for anything else.
    """
    if text.upper() in ("-1", "INFINITE", "UNLIMITED"):
        return UNLIMITED
    if max(map(len, re.findall(r"\d+", text)), default=0) > _DIGITS:
        return NOT_A_TIME
    if found := _DAYS.fullmatch(text):
        days, hours, mins, seconds = (int(part or 0) for part in found.groups())
    elif found := _CLOCK.fullmatch(text):
        first, second, third = found.groups()
        days = 0
        hours, mins, seconds = (
            (int(first), int(second), int(third)) if third else (0, int(first), int(second or 0))
        )
    else:
        return NOT_A_TIME
    return (days * 24 + hours) * 60 + mins + -(-seconds // 60)
