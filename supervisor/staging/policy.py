"""Adapts a config.json to the target: a dict in, a dict out.

The bundle was written for the machine, the user and the user namespace of the container engine
(podman, docker, runc spec, umoci). Each rule here names what would fail otherwise. The config has
to be valid; unknown members stay unchanged.

An image has annotations, too, and crun(1) takes orders by them: it connects to sockets, writes to
files, loads libraries and takes seccomp filters. So only those pass that are named here, each with
the reason why no image gains anything by it, and those that mean nothing to any runtime.
"""

from __future__ import annotations

import os.path
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import msgspec

from scrun.oci.userns import Maps, Range, is_mapped, maps_for, members
from scrun.settings.slurm.request_sources import names_of_requests, processes_asked
from scrun.supervisor.contracts.target import Target
from scrun.supervisor.staging.mounts import CopyPlaces, MountSource, Notes, Plan, fit_mounts

if TYPE_CHECKING:
    from collections.abc import Mapping

OBEYED = ("run.oci.", "krun.", "module.wasm.", "org.criu.")
"""How the names of those begin that crun or runc obeys, now or in later versions.

Not `org.systemd.property.`, which engines set: it is about a cgroup, and none is made in a job.
"""

PASSED = {
    "run.oci.keep_original_groups": (
        "the container keeps the groups of the user, whose jobs have them in any case"
    ),
    "run.oci.seccomp_fail_unknown_syscall": (
        "system calls that the runtime does not know fail in another way; none more is permitted"
    ),
    "module.wasm.image/variant": (
        "says what the program is; the runtime runs it with the container's rights"
    ),
}
"""Those that pass, and why."""


def fit_annotations(
    config: dict[str, Any], notes: Notes, submitted: Mapping[str, str] | None = None
) -> None:
    """Remove the annotations that a runtime on a node would obey, except those that pass.

    A site's script has got the `submitted` ones: it is trusted with any that it has added or
    changed. None: no script has seen them.
    """
    annotations = config.get("annotations")
    if not annotations:
        return
    for name in [*annotations]:
        if submitted is not None and submitted.get(name) != annotations[name]:
            continue
        if name.startswith(OBEYED) and name not in PASSED:
            notes.drop(annotations, "annotations.", name, "an image may ask the runtime for it")
            notes.miss(f"--annotation {name}")


_OTHER_MACHINE = "it belongs to this machine"
_ROOT_ONLY = "only root may set it"
_SLURM_LIMITS = "Slurm propagates the user's limits; the node's may be lower than these"
_SET_BY_ENGINES = ("RLIMIT_NOFILE", "RLIMIT_NPROC")
_FOR_SCRUN = "they are requests for the job, for scrun alone"
_NO_CGROUPS = "the runtime there makes no cgroups; the job has its own"

_MOST_NAMED = 100  # groups in a line
_SETS = ("bounding", "effective", "inheritable", "permitted", "ambient")

_SYSCTLS_OF_ENGINES = ("net.ipv4.ping_group_range", "net.ipv4.ip_unprivileged_port_start")

# sysctl names are per namespace; runc and crun refuse those whose namespace is the node's
_SYSCTLS = (
    ("net.", "network"),
    ("fs.mqueue.", "ipc"),
    ("kernel.shm", "ipc"),
    ("kernel.msg", "ipc"),
    ("kernel.sem", "ipc"),
    ("kernel.domainname", "uts"),
    ("kernel.hostname", "uts"),
)


# types of namespaces that members of a pod share; the others are useless to them in a job
_SHARED = frozenset(("ipc", "network", "pid", "user", "uts"))


def fit(
    config: Mapping[str, Any],
    *,
    bundle: str,
    staged: str,
    rootfs: str,
    place: CopyPlaces,
    target: Target,
    sources: Mapping[str, MountSource],
) -> Plan:
    """Adapt a valid config.json, which is not changed, to a target; all paths are absolute.

    `sources` are the properties of the sources of bind mounts and of the devices; a missing one
    counts as existing and shared. StagingError for a bind mount without a source, or with one that
    the nodes cannot have.
    """
    # copy.deepcopy takes ten times as long
    fitted: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    notes = Notes()
    fitted.setdefault("root", {})["path"] = rootfs
    process = fitted.get("process") or {}
    maps = maps_at(config, target)
    linux = fitted.setdefault("linux", {}) if target.rootless else fitted.get("linux") or {}

    _fit_process(process, target, maps, notes)
    _fit_linux(linux, process.get("user") or {}, target, maps, sources, notes)
    if target.elsewhere:
        notes.drop(fitted, "", "hooks", _OTHER_MACHINE)
        fit_annotations(fitted, notes)
    own = _own_namespaces(linux)
    outer = maps.outer if maps is not None else None
    mounts, volumes, sockets = fit_mounts(
        fitted.get("mounts") or [],
        bundle=bundle,
        staged=staged,
        place=place,
        target=target,
        # its network, if it has one of its own, belongs to the user namespace around it
        namespaces=own - {"network"} if outer else own,
        one_user=target.rootless and maps is None,
        sources=sources,
        notes=notes,
    )
    if "mounts" in fitted:
        fitted["mounts"] = mounts
    return Plan(
        *(fitted, tuple(volumes), tuple(notes.lines), tuple(notes.missed), sockets),
        outer=members(outer) if outer is not None else None,
    )


def maps_at(config: Mapping[str, Any], target: Target) -> Maps | None:
    """Return a container's maps at a target; None: it has one user, or those of config.json."""
    if not target.rootless or target.ids is None:
        return None
    return maps_for(config, target.ids, nests=target.nests)


def _fit_process(process: dict[str, Any], target: Target, maps: Maps | None, notes: Notes) -> None:
    _without_requests(process, notes)
    if target.elsewhere or target.rootless:
        notes.drop(process, "process.", "apparmorProfile", _OTHER_MACHINE)
        notes.drop(process, "process.", "selinuxLabel", _OTHER_MACHINE)
    if target.elsewhere:
        _without_default_rlimits(process, target.rlimits, notes)
        notes.drop(process, "process.", "execCPUAffinity", "Slurm binds the job's processors")
    elif target.rlimits is not None:
        _lower_rlimits(process.get("rlimits") or [], target.rlimits, notes)
    if target.rootless:
        likely = process.get("oomScoreAdj") or 0  # to be killed; anybody may raise it
        if likely <= 0 or target.rlimits is None or not target.elsewhere:
            if likely:
                notes.miss(f"--oom-score-adj {likely}")
            notes.drop(process, "process.", "oomScoreAdj", _ROOT_ONLY)
        for key in ("scheduler", "ioPriority"):
            notes.drop(process, "process.", key, _ROOT_ONLY)
        user = process.get("user") or {}
        if maps is not None:
            _groups_that_are_mapped(user, maps, notes)
        else:
            if target.maps_root:
                _become_root(user, notes)
            # setgroups(2) is denied in a user namespace that an ordinary user maps itself
            notes.drop(user, "process.user.", "additionalGids", _ROOT_ONLY)
    if target.capabilities is not None:
        _limit_capabilities(process.get("capabilities") or {}, target.capabilities, notes)


def _without_requests(process: dict[str, Any], notes: Notes) -> None:
    """Remove the variables of config.json that are requests for the job.

    A scrun in the container would repeat the requests, and trust them as its caller's own.
    """
    env = process.get("env") or []
    if names := names_of_requests(env):
        process["env"] = [entry for entry in env if entry.partition("=")[0] not in names]
        notes.add(f"process.env without {', '.join(names)}: {_FOR_SCRUN}")


def _groups_that_are_mapped(user: dict[str, Any], maps: Maps, notes: Notes) -> None:
    wanted = user.get("additionalGids") or []
    ranges = sorted(maps.gids, key=lambda each: each.inside)  # which do not overlap
    begins = [each.inside for each in ranges]

    def is_there(group: int) -> bool:
        at = bisect_right(begins, group)
        return at > 0 and ranges[at - 1].holds(group)

    there: list[int] = []
    lost: list[int] = []
    for group in wanted:
        (there if is_there(group) else lost).append(group)
    if lost:
        named = ", ".join(map(str, lost[:_MOST_NAMED])) + ", …" * (len(lost) > _MOST_NAMED)
        notes.add(f"process.user.additionalGids without {named}: not mapped there")
        user["additionalGids"] = there


def _become_root(user: dict[str, Any], notes: Notes) -> None:
    """Make the only user of the container its user 0, without more rights outside.

    runc refuses a map without that user ("User namespaces enabled, but no user mapping found").
    """
    for key in ("uid", "gid"):
        if user.get(key):
            notes.add(f"process.user.{key}: 0 instead of {user[key]}: the runtime there needs it")
            user[key] = 0


def _without_default_rlimits(
    process: dict[str, Any], hard_limits: Mapping[str, int] | None, notes: Notes
) -> None:
    """Remove limits that an engine has set by itself: for a job they are Slurm's affair.

    podman and buildah always set two, to the most that they may have here. Lower ones were asked
    for, and so were all others.
    """
    if hard_limits is None:
        notes.drop(process, "process.", "rlimits", _SLURM_LIMITS)
        return
    rlimits = process.get("rlimits") or []
    kept = [
        limit
        for limit in rlimits
        if limit["type"] not in _SET_BY_ENGINES or limit["hard"] < hard_limits[limit["type"]]
    ]
    if len(kept) < len(rlimits):
        notes.add(f"process.rlimits: {' and '.join(_SET_BY_ENGINES)} dropped: {_SLURM_LIMITS}")
        process["rlimits"] = kept


def _lower_rlimits(
    rlimits: list[dict[str, Any]], hard_limits: Mapping[str, int], notes: Notes
) -> None:
    """Lower limits above the hard limit: setrlimit(2) would fail, which ends the container."""
    for limit in rlimits:
        most = hard_limits.get(limit["type"])
        if most is None or limit["hard"] <= most:
            continue
        notes.add(f"process.rlimits: {limit['type']} lowered from {limit['hard']} to {most}")
        limit["hard"] = most
        limit["soft"] = min(limit["soft"], most)


def _limit_capabilities(
    capabilities: dict[str, Any], possible: frozenset[str], notes: Notes
) -> None:
    """Remove capabilities that the runtime itself lacks: capset(2) would fail."""
    lost: dict[str, None] = {}
    for kind in _SETS:
        if kind not in capabilities:
            continue
        names = capabilities[kind]
        lost.update((name, None) for name in names if name not in possible)
        capabilities[kind] = [name for name in names if name in possible]
    if lost:
        notes.add(f"process.capabilities without {', '.join(lost)}: not permitted there")


def _fit_linux(
    linux: dict[str, Any],
    user: Mapping[str, Any],
    target: Target,
    maps: Maps | None,
    sources: Mapping[str, MountSource],
    notes: Notes,
) -> None:
    ids = _id_maps(user, target, maps) if target.rootless else {}
    if target.elsewhere or target.rootless:
        _fit_namespaces(linux, ids, target, notes)
        notes.drop(linux, "linux.", "mountLabel", _OTHER_MACHINE)
    if target.elsewhere:
        seccomp = linux.get("seccomp") or {}
        for key in ("listenerPath", "listenerMetadata"):
            notes.drop(seccomp, "linux.seccomp.", key, _OTHER_MACHINE)
    if target.elsewhere and processes_asked(linux.get("resources") or {}):
        notes.miss("--pids-limit")
    if not target.cgroups:
        for key in ("cgroupsPath", "resources", "intelRdt"):
            notes.drop(linux, "linux.", key, _NO_CGROUPS)
    if target.rootless:
        linux.update(ids)
        _devices_that_can_be_bound(linux, sources, notes, elsewhere=target.elsewhere)
    if target.elsewhere or target.rootless:
        _sysctls_of_own_namespaces(linux, target, notes)


def _fit_namespaces(
    linux: dict[str, Any], ids: Mapping[str, Any], target: Target, notes: Notes
) -> None:
    """Replace namespaces given by a path, which belongs to this machine.

    Those of a container that is there, too, are kept: it is in the same pod. A prepared network
    namespace becomes the node's own: a new one would have only a lo that is down, and nobody
    would configure it. An ordinary user's container has a user namespace.
    """
    where, theirs = _neighbour(linux, ids, target, notes)
    kept = []
    for namespace in linux.get("namespaces") or []:
        path, kind = namespace.get("path"), namespace["type"]
        if not path or (os.path.dirname(path) == where and kind in theirs):
            kept.append(namespace)
        elif kind == "network":
            notes.add(f"linux.namespaces: the node's network instead of {path}")
        else:
            notes.add(f"linux.namespaces: a new {kind} namespace instead of {path}")
            kept.append({key: value for key, value in namespace.items() if key != "path"})
    if target.rootless:
        enters = any(namespace.get("path") for namespace in kept)
        kept = [namespace for namespace in kept if namespace["type"] != "user"]
        kept.append({"type": "user", "path": f"{where}/user"} if enters else {"type": "user"})
    if kept or "namespaces" in linux:
        linux["namespaces"] = kept


def _neighbour(
    linux: Mapping[str, Any], ids: Mapping[str, Any], target: Target, notes: Notes
) -> tuple[str, frozenset[str]]:
    """Return where config.json has the namespaces that the container enters, and their types.

    An ordinary user's enters them by the user namespace that they belong to, so it has to have
    the same users, and there can be only one such container.
    """
    paths = [namespace.get("path") or "" for namespace in linux.get("namespaces") or []]
    for where in dict.fromkeys(map(os.path.dirname, paths)):
        if where not in target.neighbours:
            continue
        theirs = target.neighbours[where].get("linux") or {}
        if all(theirs.get(key) == value for key, value in ids.items()):
            # crun has to be root there to enter a PID namespace
            is_root = not ids or is_mapped(0, ids["uidMappings"])
            return where, _own_namespaces(theirs) & (_SHARED if is_root else _SHARED - {"pid"})
        notes.add(f"linux.namespaces: not those of {where}: that container has other users")
    return "", frozenset()


def _id_maps(user: Mapping[str, Any], target: Target, maps: Maps | None) -> dict[str, Any]:
    """Return the id maps, such as an ordinary user may write.

    The submitted maps refer to ids of another machine, or of podman's own user namespace. Without
    newuidmap(1) a map has one line, for the user's own id (user_namespaces(7)).
    """
    if maps is None:
        uids = (Range(user.get("uid", 0), target.uid, 1),)
        gids = (Range(user.get("gid", 0), target.gid, 1),)
        maps = Maps(uids, gids)
    return members(maps)


def _devices_that_can_be_bound(
    linux: dict[str, Any], sources: Mapping[str, MountSource], notes: Notes, *, elsewhere: bool
) -> None:
    """Keep devices whose path exists, or may exist on the node.

    mknod(2) is not permitted in a user namespace, so runc and crun bind the device at that path
    instead, and fail if it does not exist.
    """
    good = ("device", "missing") if elsewhere else ("device",)
    if not linux.get("devices"):
        return
    kept = []
    for device in linux["devices"]:
        path = device["path"]
        if sources.get(path, MountSource(kind="device")).kind in good:
            kept.append(device)
        else:
            notes.add(f"linux.devices: {path} dropped: no such device to bind")
    linux["devices"] = kept


def _own_namespaces(linux: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(namespace["type"] for namespace in linux.get("namespaces") or [])


def _sysctls_of_own_namespaces(linux: dict[str, Any], target: Target, notes: Notes) -> None:
    """Drop sysctls of the node's namespaces, and those with groups that are not mapped."""
    own = _own_namespaces(linux)
    for name in list(linux.get("sysctl") or {}):
        namespace = next((kind for prefix, kind in _SYSCTLS if name.startswith(prefix)), None)
        if namespace not in own:
            why = f"the container has no {namespace} namespace" if namespace else _ROOT_ONLY
            notes.drop(linux["sysctl"], "linux.sysctl.", name, why)
            if target.elsewhere and name not in _SYSCTLS_OF_ENGINES:
                notes.miss(f"--sysctl {name}")
        elif target.rootless and name == "net.ipv4.ping_group_range":
            # podman always sets "0 0"; a group without a map is EINVAL
            groups = linux["sysctl"][name].split()
            if not all(_is_mapped_group(group, linux) for group in groups):
                notes.drop(linux["sysctl"], "linux.sysctl.", name, "its groups are not mapped")


def _is_mapped_group(text: str, linux: Mapping[str, Any]) -> bool:
    return text.isdecimal() and is_mapped(int(text), linux["gidMappings"])
