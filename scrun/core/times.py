"""Times as people type and read them: durations in Go's form, and moments."""

import re
import time

_DURATION = re.compile(r"([0-9]{1,9}\.?[0-9]{0,9}|\.[0-9]{1,9})(ns|us|µs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{0,9})?")


def seconds_of(text: str) -> "float | None":
    """Parse a duration such as 5s, 100ms or 1h30m; None for any other text."""
    end, seconds = 0, 0.0
    while part := _DURATION.match(text, end):
        seconds += float(part[1]) * _UNITS[part[2]]
        end = part.end()
    return seconds if 0 < end == len(text) else None


def moment(text: str, now: float) -> "float | None":
    """Parse a moment, as podman and docker do; return seconds since the epoch, or None.

    It is such seconds, a date or time in RFC 3339 form (local without a zone), or a duration
    before `now`.
    """
    if _SECONDS.fullmatch(text):
        return float(text)
    if (ago := seconds_of(text)) is not None:
        return now - ago
    return of_stamp(text) if "-" in text else None


def of_stamp(text: str) -> "float | None":
    """Parse a time in RFC 3339 form; None for any other text."""
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def clock(moment: float, now: "float | None" = None) -> str:
    """Format a moment as local time, with the date if it is not today."""
    local, today = time.localtime(moment), time.localtime(now)
    return time.strftime("%H:%M" if local[:3] == today[:3] else "%Y-%m-%d %H:%M", local)
