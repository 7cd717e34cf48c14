"""scrun events: print what a container uses, as JSON, now and then.

The lines are those of `runc events`: of type `stats`, with processor time, memory and processes.
They are added up from the container's processes on its nodes, which have no cgroups of its own.

Wire: `events ID`, once for each line.

Errors: the container does not run. That it ends meanwhile is the end, and no error.
"""

import os
import time

from scrun._fast import record_root, say
from scrun.cli.parse import Parsed
from scrun.commands.ask import answer_of, ask_supervisor
from scrun.errors import ScrunError, UsageError

_PAUSE = 5.0


def run(parsed: Parsed, argv: "list[str]") -> int:
    """Print one line with `--stats`, else one at each interval until the container ends.

    Raises:
        UsageError: The interval is none.
        ScrunError: The container is not there, or does not run.
    """
    del argv
    pause = _seconds(parsed.text("interval"))
    directory = os.path.join(record_root(parsed), parsed.id or "")
    fields = [b"events", os.fsencode(parsed.id or "")]
    status = ask_supervisor(parsed, directory, fields)
    while status == 0 and not parsed.count("stats"):
        time.sleep(pause)
        try:
            failed, answer = answer_of(directory, fields)
        except ScrunError:
            return 0
        if failed:
            return 0
        say(answer)
    return status


def _seconds(text: "str | None") -> float:
    """Read an interval: a number of seconds, with or without the `s` that runc's has."""
    if text is None:
        return _PAUSE
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = 0
    if not 0 < seconds < 86400 * 365:
        raise UsageError(f"--interval {text}: a number of seconds expected")
    return seconds
