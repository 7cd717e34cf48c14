"""scrun completion: print the script for command-line completion in a shell.

scrun(1) says where to put it. The script calls the scrun that is being typed, as `scrun
__complete`: nothing is sent or started, and the ids of containers are those that have a record.
"""

from scrun.cli.completion.complete import complete
from scrun.cli.completion.scripts import SCRIPTS
from scrun.cli.parse import Parsed, record_root
from scrun.client.find import containers
from scrun.core.errors import ScrunError, UsageError
from scrun.core.output import write


def run(parsed: Parsed) -> int:
    shell = parsed.operands[0]
    if shell not in SCRIPTS:
        raise UsageError(f"no completion for {shell!r}, only for {', '.join(SCRIPTS)}")
    write(SCRIPTS[shell].encode())
    return 0


def offer(words: "list[str]") -> int:
    """Print what could stand next: a line with `file`, `directory` or `words`, then the words."""
    kind, found = complete(words or [""], _ids)
    write("".join(f"{line}\n" for line in (kind, *found)).encode())
    return 0


def _ids(parsed: Parsed) -> "list[str]":
    try:
        return containers(record_root(parsed))
    except (OSError, ScrunError):
        return []
