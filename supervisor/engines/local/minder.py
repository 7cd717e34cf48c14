"""Run a container by RunTimeCreate, RunTimeStart and RunTimeQuery, and end with its status.

A program of its own: it becomes the subreaper of what the commands leave behind, so that the
container's first process is its child, and its exit status can be had, which oci.conf(5) has no
command for. Where the runtime keeps its own parent, the query is repeated until it says stopped.
Imports little: there is one of these for each such container.
"""

import json
import os
import subprocess
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36
_PERIOD = 0.25


def main(create: str, start: str, query: str) -> int:
    """Run the three shell commands; return the container's status, 128+n for a signal."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if status := _run(create):
        return status
    # asked before the start: a stopped container has no pid
    told = _state(query).get("pid")
    pid = told if isinstance(told, int) and 0 < told < 1 << 31 else 0
    if status := _run(start):
        return status
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(pid or -2, 0)[1])
        return code if code >= 0 else 128 - code
    except OSError:  # it is not ours: nobody can tell its status, only its end
        while _state(query).get("status") in ("created", "running"):
            time.sleep(_PERIOD)
        return 0


def _run(command: str) -> int:
    status = subprocess.run(["/bin/sh", "-c", command], check=False).returncode
    return status if status >= 0 else 128 - status


def _state(query: str) -> dict[str, object]:
    done = subprocess.run(["/bin/sh", "-c", query], stdout=subprocess.PIPE, check=False)
    try:
        state = json.loads(done.stdout)
    except (ValueError, RecursionError):
        return {}
    return state if isinstance(state, dict) else {}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
