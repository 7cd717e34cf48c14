"""scrun __complete: what could stand next on a command line, for the scripts of the shells.

Wire: nothing, and nothing is started; the ids of containers are those that have a record.
"""

from scrun.cli.completion.complete import complete
from scrun.cli.parse import Parsed, record_root
from scrun.client.find import containers
from scrun.core.errors import ScrunError
from scrun.core.output import write


def run(words: "list[str]") -> int:
    """Print it: a line with `file`, `directory` or `words`, then the words."""
    kind, found = complete(words or [""], _ids)
    write("".join(f"{line}\n" for line in (kind, *found)).encode())
    return 0


def _ids(parsed: Parsed) -> "list[str]":
    try:
        return containers(record_root(parsed))
    except (OSError, ScrunError):
        return []
