"""Finds out which user and group ids the nodes can map for the user of a container.

The submit host's subuid(5) has the user's subordinate ids; sites keep these files alike on all
machines. A step of some 40 ms tries once a week whether a node can map them. Here, commands run as
root of a user namespace with these ids.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import trio

from scrun.core import trees
from scrun.core.errors import EngineError, StagingError
from scrun.core.paths import real_id
from scrun.core.typed import decode_as
from scrun.core.users import user_name
from scrun.core.whole_files import write_whole
from scrun.oci.signals import its_end
from scrun.oci.userns import INITIAL, BothIds, Ids, Ranges, ids_here, read_map, read_subordinate
from scrun.supervisor.children.processes import own_program
from scrun.supervisor.contracts.engine import Job, JobRequest
from scrun.supervisor.contracts.target import Target
from scrun.supervisor.core.threads import in_thread

_ASKED = 5.0
_LITTLE = 65536
_GOOD_FOR = {True: 7 * 86400.0, False: 3600.0}
"""Seconds for which an answer is valid: that a node can map ids, and that it cannot."""

# unshare runs a process in a new namespace, whose maps can be written once the process is in it
_TRY = """\
missing=
for tool in unshare newuidmap newgidmap; do
	command -v $tool >/dev/null || missing="$missing $tool"
done
if [ -n "$missing" ]; then
	echo "$SLURMD_NODENAME:$missing: not found"
	exit 0
fi
unshare --user sleep 5 &
pid=$!
here=$(readlink /proc/self/ns/user)
for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
	there=$(readlink /proc/$pid/ns/user) || break
	[ "$there" = "$here" ] || break
	sleep 0.05
done
output=$({ newuidmap $pid %s && newgidmap $pid %s; } 2>&1) && output=ok
kill $pid
echo "$SLURMD_NODENAME: $output" | head -n 1
"""


class _NodeIds(msgspec.Struct, frozen=True):
    """Whether all nodes of a job can map them; asked `when`, in seconds of the epoch."""

    ids: BothIds
    can: bool
    when: float
    why: str = ""

    def holds(self, ids: BothIds, now: float) -> bool:
        """Return whether the answer is still valid, and for these ids."""
        return self.ids == ids and 0 <= now - self.when < _GOOD_FOR[self.can]


_File = dict[str, _NodeIds]
Item = TypeVar("Item")


async def with_ids(
    target: Target, job: Job, setting: str, request: JobRequest
) -> tuple[Target, str]:
    """Return a target with the ids there, and why there is only one, or ""; full: StagingError."""
    if not target.rootless or setting == "single":
        return target, ""
    is_asked = target.elsewhere and setting != "full"
    path = cache_of(request.child_env.environment, "id-maps.json") if is_asked else ""
    ids, known = await in_thread(_here, target, path)
    if ids is None:
        why = "you have no subordinate ids here (subuid(5)): see `scrun doctor`"
    elif setting == "full":
        why = ""
    elif target.elsewhere:
        why = await _why_not_on_nodes(ids, path, known, job)
    else:
        missing = [name for name in ("newuidmap", "newgidmap") if not shutil.which(name)]
        why = f"{', '.join(missing)}: not found" if missing else ""
    if not why:
        return msgspec.structs.replace(target, ids=ids), ""
    if setting == "full":
        raise StagingError(f'id_map = "full": {why}')
    return target, f"the container has one user: {why}"


def _here(target: Target, path: str) -> tuple[BothIds | None, _File]:
    """Return the ids that this user can map, and what is known of nodes, if there is a path."""
    ids = _ids(target.uid, target.gid, target.elsewhere)
    return ids, read_cache(path, _File) if ids is not None and path else {}


def _ids(uid: int, gid: int, elsewhere: bool) -> BothIds | None:
    """Return the ids that this user can map; reads files, and may ask the name service."""
    uids = _kind("uid", uid, elsewhere=elsewhere)
    gids = _kind("gid", gid, elsewhere=elsewhere) if uids else None
    return BothIds(uids, gids) if uids and gids else None


def _kind(kind: str, own: int, *, elsewhere: bool) -> Ids | None:
    inside = read_map(Path(f"/proc/self/{kind}_map").read_text())
    if not elsewhere and inside != INITIAL:
        return None  # in podman's namespace this user is root, not rootless
    return ids_here(own, inside, _subordinate(kind, real_id("uid")))


def _subordinate(kind: str, uid: int) -> list[tuple[int, int]]:
    """Return a user's subordinate ids, from the file or the source in nsswitch.conf(5)."""
    name = user_name(uid)
    try:
        text = Path(f"/etc/sub{kind}").read_text(errors="replace")
    except OSError:
        text = ""
    if (found := read_subordinate(text, (name, str(uid)))) or not _asks_somebody():
        return found
    command = ["getsubids", *(["-g"] if kind == "gid" else []), name]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ASKED
        )
        lines = (line.split()[-2:] for line in done.stdout.splitlines())  # `0: NAME FIRST COUNT`
        return read_subordinate("\n".join(":".join([name, *line]) for line in lines), (name,))
    return []


def _asks_somebody() -> bool:
    try:
        text = Path("/etc/nsswitch.conf").read_text(errors="replace")
    except OSError:
        return False
    return any(line.split("#")[0].startswith("subid:") for line in text.splitlines())


async def _why_not_on_nodes(ids: BothIds, path: str, known: _File, job: Job) -> str:
    """Return why a node of a job cannot map these ids, or ""; cached answers are reused."""
    environment = job.environment
    nodes = environment.get("SLURM_JOB_NODELIST", "")
    name = f"{environment.get('SLURM_CLUSTER_NAME', '')}/{nodes}"
    now = time.time()
    found = known.get(name)
    if found is None or not found.holds(ids, now):
        try:
            why = await _ask(ids, job)
        except EngineError as error:
            return f"{nodes}: cannot find out whether more ids can be mapped: {error}"
        found = known[name] = _NodeIds(ids, not why, now, why)
        young = {name: one for name, one in known.items() if one.holds(one.ids, now)}
        await in_thread(write_cache, path, young)
    return found.why


async def _ask(ids: BothIds, job: Job) -> str:
    """Try to map ids on all nodes of a job; return the first failure, or ""."""
    readable, writable = os.pipe()
    script = _TRY % tuple(" ".join(_numbers(each.whole)) for each in (ids.uids, ids.gids))
    content = b""
    async with trio.lowlevel.FdStream(readable) as stream:
        try:
            status = await job.command(script, writable)
        finally:
            os.close(writable)
        async for part in stream:
            content += part[: _LITTLE - len(content)]
    if status:
        raise EngineError(f"it {its_end(status)}")
    lines = content.decode(errors="replace").splitlines()
    return next((line for line in lines if not line.endswith(": ok")), "")


def _numbers(ranges: Ranges) -> list[str]:
    return [str(n) for each in ranges for n in (each.inside, each.outside, each.size)]


def cache_of(environment: Mapping[str, str], name: str) -> str:
    """Return the path of a file in the user's cache."""
    home = environment.get("HOME") or os.path.expanduser("~")
    cache = environment.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    return os.path.join(cache, "scrun", name)


def read_cache(path: str, kind: type[dict[str, Item]]) -> dict[str, Item]:
    """Read earlier answers, as far as there are some."""
    try:
        return decode_as(Path(path).read_bytes(), kind)
    except (OSError, msgspec.DecodeError):
        return {}


def write_cache(path: str, content: Mapping[str, object]) -> None:
    """Write answers; a failure costs only another look next time."""
    with contextlib.suppress(OSError, UnicodeEncodeError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        write_whole(path, msgspec.json.encode(content))


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
    """Remove files of subordinate ids, without links and mounts, if there are such ids."""
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
    return lines[0].rpartition(": ")[2] or f"it {its_end(done.returncode)}"


def _lent() -> BothIds | None:
    """Return the ids to map; None in a container engine's namespace, where this user is root."""
    ids = _ids(real_id("uid"), real_id("gid"), elsewhere=True)
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
    words = [tool, str(pid), *_numbers(ids.whole)]
    done = subprocess.run(words, capture_output=True, timeout=_TOOL)
    return done.returncode == 0
