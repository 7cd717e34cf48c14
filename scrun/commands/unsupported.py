"""Commands that scrun knows and refuses: scrun checkpoint and scrun restore.

The processes of a container are in a job on another machine. runc and crun save processes with
CRIU, which needs root there, and whose files name the node's pids, mounts and cgroups. So nothing
can be restored either. The error names alternatives.
"""

import os

from scrun.cli.parse import Parsed, record_root
from scrun.core.errors import StateError, UnknownContainer
from scrun.core.paths import has_record

_WHY = {
    "checkpoint": "cannot be checkpointed: its processes are in a job, where CRIU would need root;"
    " have the program save its own state, or stop it for a while with 'scrun pause'",
    "restore": "cannot be restored: it would need a new job, on whose nodes CRIU would need root;"
    " create it anew, and have the program go on from its own saved state",
}


def run(parsed: Parsed) -> int:
    container = parsed.id or ""
    record = os.path.join(record_root(parsed), container)
    if parsed.command == "checkpoint" and not has_record(record):
        raise UnknownContainer(f"container {container} does not exist")
    raise StateError(f"container {container} {_WHY[parsed.command]}")
