"""scrun restore: not possible, and says why.

There is nothing to restore from: see `checkpoint`. A process that was saved elsewhere needs its
old pids, mounts and cgroups, and root for CRIU; a new job offers none of that.

Errors: StateError, always.
"""

from scrun.cli.parse import Parsed
from scrun.core.errors import StateError


def run(parsed: Parsed, argv: list[str]) -> int:
    """Refuse.

    Raises:
        StateError: Always.
    """
    del argv
    raise StateError(
        f"container {parsed.id} cannot be restored: it would need a new job, on whose nodes CRIU"
        " would need root; create it anew, and have the program go on from its own saved state"
    )
