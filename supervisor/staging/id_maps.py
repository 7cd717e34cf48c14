"""Finds out which user and group ids the nodes can map for the user of a container.

The submit host's subuid(5) has the user's subordinate ids; sites keep these files alike on all
machines. A step of some 40 ms tries once a week whether a node can map them.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import trio

from scrun.core.errors import EngineError, StagingError
from scrun.core.paths import real_id
from scrun.core.users import user_name
from scrun.core.whole_files import write_whole
from scrun.oci.userns import (
    INITIAL,
    BothIds,
    Ids,
    Ranges,
    ids_here,
    read_map,
    read_subordinate,
)
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
    """The answer of a job's nodes.

    Attributes:
        can: Whether all nodes can map them.
        when: The time of the answer, in seconds of the epoch.
    """

    ids: BothIds
    can: bool
    when: float
    why: str = ""

    def holds(self, ids: BothIds, now: float) -> bool:
        """Return whether the answer is still valid, and for these ids."""
        return self.ids == ids and 0 <= now - self.when < _GOOD_FOR[self.can]


_File = dict[str, _NodeIds]


async def with_ids(
    target: Target, job: Job, setting: str, request: JobRequest
) -> tuple[Target, str]:
    """Add to a target the user and group ids that a container may have there.

    Returns:
        The target; and a message why there is only one user, or "".

    Raises:
        StagingError: `id_map` is "full", and there is only one user.
    """
    if not target.rootless or setting == "single":
        return target, ""
    ids = await in_thread(_ids, target)
    if ids is None:
        why = "you have no subordinate ids here (subuid(5)): see `scrun doctor`"
    elif setting == "full":
        why = ""
    elif target.elsewhere:
        why = await _why_not_on_nodes(ids, job, request)
    else:
        missing = [name for name in ("newuidmap", "newgidmap") if not shutil.which(name)]
        why = f"{', '.join(missing)}: not found" if missing else ""
    if not why:
        return msgspec.structs.replace(target, ids=ids), ""
    if setting == "full":
        raise StagingError(f'id_map = "full": {why}')
    return target, f"the container has one user: {why}"


def _ids(target: Target) -> BothIds | None:
    """Return the ids that this user can map; reads files, and may ask the name service."""
    uids = _kind("uid", target.uid, elsewhere=target.elsewhere)
    gids = _kind("gid", target.gid, elsewhere=target.elsewhere) if uids else None
    return BothIds(uids, gids) if uids and gids else None


def lent_to_caller() -> BothIds | None:
    """Return the ids that the user of this process can map; see `_ids`."""
    uids = _kind("uid", real_id("uid"), elsewhere=True)
    gids = _kind("gid", real_id("gid"), elsewhere=True)
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


async def _why_not_on_nodes(ids: BothIds, job: Job, request: JobRequest) -> str:
    """Return why a node of a job cannot map these ids, or ""; cached answers are reused."""
    environment = job.environment
    variables = dict(request.child_env.environment)
    path, known = await in_thread(_known_maps, variables)
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
        await in_thread(_write, path, known, now)
    return found.why


async def _ask(ids: BothIds, job: Job) -> str:
    """Try to map ids on all nodes of a job; return the first failure, or ""."""
    readable, writable = os.pipe()
    script = _TRY % (_words(ids.uids.whole), _words(ids.gids.whole))
    content = b""
    async with trio.lowlevel.FdStream(readable) as stream:
        try:
            status = await job.command(script, writable)
        finally:
            os.close(writable)
        async for part in stream:
            content += part[: _LITTLE - len(content)]
    if status:
        raise EngineError(f"status {status}")
    lines = content.decode(errors="replace").splitlines()
    return next((line for line in lines if not line.endswith(": ok")), "")


def _words(ranges: Ranges) -> str:
    return shlex.join(str(n) for each in ranges for n in (each.inside, each.outside, each.size))


def cache_of(environment: Mapping[str, str], name: str) -> str:
    """Return the path of a file in the user's cache."""
    home = environment.get("HOME") or os.path.expanduser("~")
    cache = environment.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    return os.path.join(cache, "scrun", name)


def _known_maps(environment: Mapping[str, str]) -> tuple[str, _File]:
    """Return the path of the file with earlier answers, and its content."""
    path = cache_of(environment, "id-maps.json")
    try:
        return path, msgspec.json.decode(Path(path).read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError):
        return path, {}


def _write(path: str, content: _File, now: float) -> None:
    """Write the cache; a failure costs only another step next time."""
    young = {name: known for name, known in content.items() if known.holds(known.ids, now)}
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        write_whole(path, msgspec.json.encode(young))
