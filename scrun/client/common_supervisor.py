"""scrun start: start the program of a created container.

Wire: `start ID`, sent by `client.ask`. Here is only what follows in one case: the container's
supervisor was started below conmon and is its own (see `scrun.commands.create`). podman calls
`start` itself, so one that is started from here is nobody's child for long; buildah does not.
"""

import os

from scrun.cli.parse import Parsed
from scrun.client.ask import record_root, setting
from scrun.client.launch import is_waited_for, launch_beside
from scrun.client.supervisor_name import supervisor_name
from scrun.core.errors import ScrunError


def common_supervisor(parsed: Parsed) -> None:
    """Have the supervisor started that serves the next containers, if there is none."""
    try:
        root = record_root(parsed)
        if (setting(parsed, "group") or "user") != "user" or is_waited_for():
            return
        name = supervisor_name("user", parsed)
        if not os.path.lexists(f"{root}/{name}"):
            launch_beside(root, name)
    except (ScrunError, OSError):
        pass  # the next `create` starts one, and says what is wrong
