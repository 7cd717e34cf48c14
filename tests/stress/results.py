"""The file of `--report`: what a run of tools/bench or tools/chaos has found, for the site.

The site makes a page of all that are in docs/results (docs/site/results.py).
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.harness.machine import machine

_OF_THE_MACHINE = ("--details", "--log", "--report", "--user")
"""Options whose values say nothing about what was run."""


def write(
    path: Path,
    command: Sequence[str],
    tables: Mapping[str, Iterable[Mapping[str, object]]],
    about: Mapping[str, object] = {},
) -> None:
    """Write such a file.

    Args:
        path: The file.
        command: The command line of the run, its program first.
        tables: Rows by the title of their table. A row has its cells by the heads of the columns;
            a number stays one, so that the site can draw it.
        about: What holds for the whole run.
    """
    content = {
        "program": Path(command[0]).name,
        "arguments": [*_that_count(command[1:])],
        "date": time.strftime("%Y-%m-%d"),
        "machine": dict(machine()),
        "about": dict(about),
        "tables": {title: [dict(row) for row in rows] for title, rows in tables.items()},
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _that_count(arguments: Sequence[str]) -> Iterator[str]:
    words = iter(arguments)
    for word in words:
        name, equals, _ = word.partition("=")
        if name not in _OF_THE_MACHINE:
            yield word
        elif not equals:
            next(words, None)
