"""scrun checkpoint: not possible, and says why.

The processes of a container are in a job on another machine. CRIU, which runc and crun save them
with, needs root there, and the files it writes name the node's pids, mounts and cgroups. What does
work is named instead.

Errors: UnknownContainer, when there is no such container; StateError otherwise, always.
"""

import os

from scrun.cli.parse import Parsed
from scrun.client.ask import record_root
from scrun.core.errors import StateError, UnknownContainer
from scrun.core.paths import has_record


def run(parsed: Parsed, argv: list[str]) -> int:
    """Refuse.

    Raises:
        UnknownContainer: There is no such container.
        StateError: There is one.
    """
    del argv
    container = parsed.id or ""
    if not has_record(os.path.join(record_root(parsed), container)):
        raise UnknownContainer(f"container {container} does not exist")
    raise StateError(
        f"container {container} cannot be checkpointed: its processes are in a job, where CRIU"
        " would need root; have the program save its own state, or stop it for a while with"
        " 'scrun pause'"
    )
