"""scrun ps: list the processes in a container.

Wire: `ps ID FORMAT OPTION...`, FORMAT "table" or "json", options of ps(1) for the table. The JSON
is a list of pids of this host; for a container that runs elsewhere it has the anchor's pid.
"""

import os

from scrun.cli.parse import Parsed
from scrun.client.find import resolve
from scrun.client.reach import ask_supervisor


def run(parsed: Parsed) -> int:
    container, directory = resolve(parsed)
    words = ["ps", container, parsed.text("format") or "table", *parsed.operands]
    return ask_supervisor(parsed, directory, [os.fsencode(word) for word in words])
