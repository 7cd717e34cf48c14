"""Commands that are run as root of a user namespace that has the user's lent ids."""

import contextlib
import subprocess
from collections.abc import Sequence

from scrun.oci.userns import BothIds, Ids
from scrun.supervisor.children.processes import own_program
from scrun.supervisor.staging.id_maps import lent_to_caller

_REMOVING = 600.0
_TRYING = 10.0
_TOOL = 10.0
# sh has lost its capabilities by its exec; what root of the finished map executes has them all
_WAIT = 'echo; read -r _ && exec "$@"'
_GIVE_AWAY = """
file=$(mktemp "$1/.scrun-doctor.XXXXXX") || exit
chown "$2" "$file"
status=$?
rm -f "$file"
exit "$status"
"""


def remove_mapped(path: str) -> None:
    """Remove a tree with files of subordinate ids; no link is followed, no other mount entered.

    Without such ids, or newuidmap(1), what is left is left.
    """
    if (ids := _lent()) is not None:
        _run(("rm", "-rf", "--one-file-system", "--", path), ids, _REMOVING)


def why_no_owners(directory: str) -> str:
    """Tell why a file in a directory cannot belong to a lent id, or "".

    Network file systems often know nothing of what root of a user namespace may do. Nothing is
    known either where no ids are lent.
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
    """Return what has to be mapped: within an engine's namespace we are root of it already."""
    ids = lent_to_caller()
    return None if ids is None or ids.lent else ids


def _run(
    command: Sequence[str], ids: BothIds, timeout: float
) -> subprocess.CompletedProcess[bytes] | None:
    """Run a command; None if there is no such namespace, or it took too long."""
    words = [own_program("unshare"), "--user", "/bin/sh", "-c", _WAIT, "sh", *command]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe) as child:
        assert child.stdout is not None
        try:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                child.stdout.readline()  # then it is in its namespace
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
