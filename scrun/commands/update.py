"""scrun update: change the limits of a running container, as far as its job allows.

Slurm lets a user lower the time limit of a running job, and nothing else; the CPUs and memory of a
container are those of its job. On this machine the OCI runtime changes the limits.

Wire: `update ID TIME RESOURCES`: a time limit or nothing, `linux.resources` as JSON.

Errors: if a limit cannot be changed, the error names it and nothing is changed. A value that the
container already has changes nothing.
"""

import json
import os
import re
from typing import Any

from scrun.cli.parse import Parsed, record_root
from scrun.client.reach import ask_supervisor
from scrun.core.errors import UsageError, why
from scrun.oci.resources import LIMIT, read_resources, resources_from_options

_TIME = re.compile(
    r"\d{1,7}|\d{1,7}:\d\d|\d{1,5}:\d\d:\d\d|\d{1,4}-\d\d?(:\d\d){0,2}|UNLIMITED|INFINITE",
    re.ASCII | re.IGNORECASE,
)


def run(parsed: Parsed) -> int:
    resources = resources_from_options(parsed.options)
    name = parsed.text("resources")
    if name is not None:
        resources = _merged(_read(name), resources)
    limit = parsed.text("time-limit") or ""
    if limit and not _TIME.fullmatch(limit):
        raise UsageError(
            f"--time-limit {limit}: minutes, HH:MM:SS or D-HH:MM expected, as for salloc --time"
        )
    if name is None and not resources and not limit:
        raise UsageError("update needs a limit to change: see 'scrun update --help'")
    fields = [os.fsencode(limit), json.dumps(resources).encode()]
    directory = os.path.join(record_root(parsed), parsed.id or "")
    return ask_supervisor(parsed, directory, [b"update", os.fsencode(parsed.id or ""), *fields])


def _read(name: str) -> dict[str, object]:
    """Read the resources that an engine sends; docker sends them on standard input."""
    try:
        # by number: sys.stdin is missing when that was closed
        with open(0 if name == "-" else name, "rb", closefd=name != "-") as file:
            content = file.read(LIMIT + 1)
    except OSError as error:
        raise UsageError(f"--resources {name}: {why(error)}") from error
    return read_resources(content, f"--resources {name}")


def _merged(there: dict[str, object], typed: dict[str, Any]) -> dict[str, object]:
    """Merge the typed values into the file's, member by member."""
    parts = {name: there.get(name) for name in typed}
    together = {
        name: {**part, **typed[name]} if isinstance(part, dict) else typed[name]
        for name, part in parts.items()
    }
    return {**there, **together}
