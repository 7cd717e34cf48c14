"""Times as people type them: durations as Go has them, and moments. Pure."""

import re

_DURATION = re.compile(r"([0-9]{1,9}\.?[0-9]{0,9}|\.[0-9]{1,9})(ns|us|µs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{0,9})?")


def seconds_of(text: str) -> "float | None":
    """Read a duration such as 5s, 100ms or 1h30m; None if it is none."""
    place, seconds = 0, 0.0
    while part := _DURATION.match(text, place):
        seconds += float(part[1]) * _UNITS[part[2]]
        place = part.end()
    return seconds if 0 < place == len(text) else None


def moment(text: str, now: float) -> "float | None":
    """Read a moment as podman and docker have it.

    Args:
        text: Seconds since the epoch, a date or a time as RFC 3339 has them (local, without a
            zone), or how long ago.
        now: The time.

    Returns:
        Seconds since the epoch; None if it is none of these.
    """
    if _SECONDS.fullmatch(text):
        return float(text)
    if (ago := seconds_of(text)) is not None:
        return now - ago
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).timestamp() if "-" in text else None
    except (ValueError, OverflowError, OSError):
        return None
