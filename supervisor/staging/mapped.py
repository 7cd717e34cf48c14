"""Removes what belongs to the user's lent ids, as root of a user namespace that has them."""

import subprocess

from supervisor.processes import own_program
from supervisor.staging.id_maps import lent_to_caller
from supervisor.staging.ids import Ids

_TIMEOUT = 600.0
_TOOL = 10.0
# sh has lost its capabilities by its exec; what root of the finished map executes has them all
_WAIT = 'echo; read -r _ && exec "$@"'


def remove_mapped(path: str) -> None:
    """Remove a tree with files of subordinate ids; no link is followed, no other mount entered.

    Without such ids, or newuidmap(1), what is left is left.
    """
    if (ids := lent_to_caller()) is None or ids.lent:
        return  # within an engine's namespace we are root of it already
    remove = ("rm", "-rf", "--one-file-system", "--", path)
    command = [own_program("unshare"), "--user", "/bin/sh", "-c", _WAIT, "sh", *remove]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        try:
            child.stdout.readline()  # then it is in its namespace
            if _map("newuidmap", child.pid, ids.uids) and _map("newgidmap", child.pid, ids.gids):
                child.communicate(b"\n", _TIMEOUT)
        except (OSError, subprocess.SubprocessError):
            pass
        finally:
            child.kill()


def _map(tool: str, pid: int, ids: Ids) -> bool:
    numbers = [str(n) for each in ids.whole for n in (each.inside, each.outside, each.size)]
    done = subprocess.run([tool, str(pid), *numbers], capture_output=True, timeout=_TOOL)
    return done.returncode == 0
