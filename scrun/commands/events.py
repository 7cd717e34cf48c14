"""scrun events: print the resource usage of a container, as JSON, at intervals.

The lines are those of `runc events`: of type `stats`, with CPU time, memory and processes. The
figures are sums over the container's processes on its nodes, where it has no cgroup of its own.
"""

import os
import re

from scrun.cli.parse import Parsed
from scrun.client.find import resolve
from scrun.client.reach import ask_supervisor, fetch_answer
from scrun.core.errors import ScrunError, UsageError
from scrun.core.output import is_read, say
from scrun.core.times import seconds_of

_PAUSE = 5.0
_NUMBER = re.compile(r"[0-9]{0,9}\.?[0-9]{0,9}")


def run(parsed: Parsed) -> int:
    """Print one line with `--stats`, else one at each interval until it ends or nobody reads."""
    pause = seconds(parsed.text("interval"), _PAUSE)
    container, directory = resolve(parsed)
    fields = [b"events", os.fsencode(container)]
    status = ask_supervisor(parsed, directory, fields)
    while status == 0 and not parsed.count("stats") and is_read(seconds=pause):
        try:
            failed, answer = fetch_answer(directory, fields)
        except ScrunError:
            return 0
        if failed:
            return 0
        say(answer)
    return status


def seconds(text: str | None, otherwise: float) -> float:
    """Parse an interval: a number of seconds, or a duration in Go's form, as for runc."""
    if text is None:
        return otherwise
    found = seconds_of(text + "s" if _NUMBER.fullmatch(text) else text)
    if found is None or not 0 < found < 86400 * 365:
        raise UsageError(f"--interval {text}: is not a time such as 5, 5s, 100ms or 1m30s")
    return found
