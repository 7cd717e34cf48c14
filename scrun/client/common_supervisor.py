"""Start the supervisor for the next containers, after the `start` of one that has its own.

A container whose `create` ran below conmon has a supervisor of its own (`scrun.client.submit`).
podman, and not conmon, calls `start`: a supervisor that is started here keeps nobody waiting.
buildah calls `start` itself and would wait, so there none is started.
"""

import os

from scrun.cli.parse import Parsed
from scrun.client.ask import record_root, setting
from scrun.client.launch import is_waited_for, launch_beside
from scrun.client.supervisor_name import place, supervisor_name
from scrun.core.errors import ScrunError


def common_supervisor(parsed: Parsed) -> None:
    """Have the supervisor started that serves the next containers, unless it is running."""
    try:
        root = record_root(parsed)
        if (setting(parsed, "group") or "user") != "user" or is_waited_for():
            return
        if place().task:  # it would end with that
            return
        name = supervisor_name("user", parsed)
        if not os.path.lexists(f"{root}/{name}"):
            launch_beside(root, name)
    except (ScrunError, OSError):
        pass  # the next `create` starts one, and reports what is wrong
