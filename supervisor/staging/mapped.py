"""Runs commands as root of a user namespace with the user's subordinate ids."""

import contextlib
import subprocess
from collections.abc import Sequence

from scrun.core import trees
from scrun.oci.userns import BothIds, Ids
from scrun.supervisor.children.processes import own_program
from scrun.supervisor.staging.id_maps import lent_to_caller

_REMOVING = 600.0
_TRYING = 10.0
_TOOL = 10.0
# exec cleared the capabilities of sh; what it executes as root of the finished map has them all
_WAIT = 'echo; read -r _ && exec "$@"'
_GIVE_AWAY = """
file=$(mktemp "$1/.scrun-doctor.XXXXXX") || exit
chown "$2" "$file"
status=$?
rm -f "$file"
exit "$status"
"""


def remove_mapped(path: str) -> None:
    """Remove a tree with files of subordinate ids; follows no links, enters no other mounts.

    Does nothing without such ids or newuidmap(1).
    """
    if (ids := _lent()) is not None:
        _run(("rm", "-rf", "--one-file-system", "--", path), ids, _REMOVING)


def run_mapped(
    command: Sequence[str], timeout: float
) -> subprocess.CompletedProcess[bytes] | None:
    """Run a command; return None without subordinate ids or newuidmap(1), or after the timeout."""
    return None if (ids := _lent()) is None else _run(command, ids, timeout)


def remove_whoever_owns_it(path: str) -> None:
    """See `scrun.core.trees.remove_whoever_owns_it`."""
    trees.remove_whoever_owns_it(path, remove_mapped)


def why_no_owners(directory: str) -> str:
    """Return why a file in a directory cannot belong to a subordinate id, or "".

    Network file systems often do not honour the rights of root in a user namespace. The answer is
    also "" if the user has no subordinate ids.
    """
    if (ids := _lent()) is None:
        return ""
    owner = f"{ids.uids.whole[-1].inside}:{ids.gids.whole[-1].inside}"
    done = _run(("/bin/sh", "-c", _GIVE_AWAY, "sh", directory, owner), ids, _TRYING)
    if done is None or done.returncode == 0:
        return ""
    lines = done.stderr.decode(errors="replace").split("\n")
    return lines[0].rpartition(": ")[2] or f"status {done.returncode}"


def _lent() -> BothIds | None:
    """Return the ids to map; None in a container engine's namespace, where this user is root."""
    ids = lent_to_caller()
    return None if ids is None or ids.lent else ids


def _run(
    command: Sequence[str], ids: BothIds, timeout: float
) -> subprocess.CompletedProcess[bytes] | None:
    """Run a command; return None if the namespace cannot be made, or after the time limit."""
    words = [own_program("unshare"), "--user", "/bin/sh", "-c", _WAIT, "sh", *command]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe) as child:
        assert child.stdout is not None
        try:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                child.stdout.readline()  # now the child is in its namespace
                tools = (("newuidmap", ids.uids), ("newgidmap", ids.gids))
                if all(_map(tool, child.pid, each) for tool, each in tools):
                    out, err = child.communicate(b"\n", timeout)
                    return subprocess.CompletedProcess(words, child.returncode, out, err)
        finally:
            child.kill()
    return None


def _map(tool: str, pid: int, ids: Ids) -> bool:
    numbers = [str(n) for each in ids.whole for n in (each.inside, each.outside, each.size)]
    done = subprocess.run([tool, str(pid), *numbers], capture_output=True, timeout=_TOOL)
    return done.returncode == 0
