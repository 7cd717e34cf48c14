"""scrun events: print what a container uses, as JSON, now and then.

The lines are those of `runc events`: of type `stats`, with processor time, memory and processes.
They are added up from the container's processes on its nodes, which have no cgroups of its own.

Wire: `events ID`, once for each line.

Errors: the container does not run. That it ends meanwhile is the end, and no error.
"""

import os
import re
import time

from scrun.cli.parse import Parsed
from scrun.client.answer import ask_supervisor, fetch_answer
from scrun.client.ask import record_root
from scrun.client.find import resolve_id
from scrun.core.errors import ScrunError, UsageError
from scrun.core.output import say
from scrun.core.times import seconds_of

_PAUSE = 5.0
_NUMBER = re.compile(r"[0-9]{0,9}\.?[0-9]{0,9}")


def run(parsed: Parsed, argv: "list[str]") -> int:
    """Print one line with `--stats`, else one at each interval until the container ends.

    Raises:
        UsageError: The interval is not a time.
        ScrunError: The container is not there, or does not run.
    """
    del argv
    pause = _seconds(parsed.text("interval"))
    root = record_root(parsed)
    container = resolve_id(parsed, root)
    directory, fields = os.path.join(root, container), [b"events", os.fsencode(container)]
    status = ask_supervisor(parsed, directory, fields)
    while status == 0 and not parsed.count("stats"):
        time.sleep(pause)
        try:
            failed, answer = fetch_answer(directory, fields)
        except ScrunError:
            return 0
        if failed:
            return 0
        say(answer)
    return status


def _seconds(text: "str | None") -> float:
    """Read an interval: a number of seconds, or a duration as Go and so runc have it."""
    if text is None:
        return _PAUSE
    seconds = seconds_of(text + "s" if _NUMBER.fullmatch(text) else text)
    if seconds is None or not 0 < seconds < 86400 * 365:
        raise UsageError(f"--interval {text}: is not a time such as 5, 5s, 100ms or 1m30s")
    return seconds
