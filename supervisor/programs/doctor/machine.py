"""Checks of this machine: scrun's own files, its store of images, namespaces, and engines."""

import contextlib
import os
import platform
import re
import stat
from collections.abc import Callable, Mapping

import trio

from scrun.client.reach import tidy_up
from scrun.commands.install import API, ENGINES, InstallTarget, home, home_config
from scrun.core.errors import ScrunError, SettingsError
from scrun.core.own_directory import own_directory
from scrun.core.paths import of_path, replaceable
from scrun.core.users import user_name
from scrun.core.version import VERSION
from scrun.images.store import Store, path_for, size_of
from scrun.install import docker, files, launcher, needs, podman
from scrun.settings.file import sources
from scrun.settings.slurm.versions import features
from scrun.supervisor.children.processes import own_program
from scrun.supervisor.containers.successor import abandoned_records
from scrun.supervisor.core.limits import still_limited
from scrun.supervisor.programs.doctor.call import Check, DoctorCall, one, run_tool, slurm_version
from scrun.supervisor.programs.doctor.cluster import by_own_shim
from scrun.supervisor.programs.doctor.findings import Finding, fail, first, ok, warn
from scrun.supervisor.staging.id_maps import why_no_owners
from scrun.supervisor.staging.stored import NO_TOOL

# crun 1.21 makes its directory even for its version; an ordinary user often has no right to
_TOOLS = {"podman": (), "docker": (), "crun": ("--root", "/"), "runc": ("--root", "/")}
_GIB = 1 << 30
_FORBIDS = (
    ("user/max_user_namespaces", 0, "sysctl user.max_user_namespaces=10000"),
    ("kernel/unprivileged_userns_clone", 0, "sysctl kernel.unprivileged_userns_clone=1"),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        1,
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or a profile for AppArmor",
    ),
)
"""Files of /proc/sys, the value with which they forbid user namespaces, and the remedy."""


def judge_namespaces(refusal: str, values: Mapping[str, int], *, needed: bool) -> Finding:
    """Judge whether this user can make a user namespace; `refusal` is the kernel's error, or "".

    `values` are those of the files of /proc/sys that exist. `needed`: containers run on this
    machine, as an ordinary user.
    """
    if not refusal:
        return ok("can be made")
    forbidding = (remedy for name, value, remedy in _FORBIDS if values.get(name) == value)
    remedy = next(forbidding, "check what forbids it: seccomp, SELinux, or an outer container")
    why = "rootless podman needs it; without it `create` returns pids in host namespaces"
    text = f"not permitted: {refusal}"
    return fail(text, remedy) if needed else warn(text, f"{remedy} ({why})")


def judge_ids(user: str, uid: int, subuid: str | None, subgid: str | None) -> Finding:
    """Judge the number of ids that rootless podman can map; a line may have either name or id."""
    uids, gids = (needs.count_ids(text, user, uid) for text in (subuid, subgid))
    if min(uids, gids) >= needs.WANTED_IDS:
        return ok(f"{uids} users, {gids} groups")
    found = f"{uids} users and {gids} groups in /etc/subuid and /etc/subgid for {user}"
    return warn(found, needs.ids_remedy(user))


def judge_runtime_dir(
    value: str, owner: int | None, mode: int, uid: int, *, goes: bool = False
) -> Finding:
    """Judge XDG_RUNTIME_DIR (basedir-spec: ours, 0700); `goes`: at the last session's end."""
    remedy = (
        f"log in again, or: loginctl enable-linger; else make /run/user/{uid}, mode 700, yours"
    )
    lingering = (
        "loginctl enable-linger; without it podman's containers end then, wherever they run, and "
        "records of others may be restored only when you log in again"
    )
    gone = f"{value}: removed when your last session ends, with the records of containers"
    open_to = f"{value}: mode {mode & 0o777:o}: other users have access"
    return first(
        (not value and uid == 0, ok("not set; root does not need it")),
        (not value, warn("not set", f"{remedy}, and set it")),
        (value[:1] != "/", fail(f"{value}: not an absolute path", f"{remedy}, and set it")),
        (owner is None, fail(f"{value}: does not exist", remedy)),
        (owner != uid, fail(f"{value}: belongs to uid {owner}", remedy)),
        (mode & 0o077, warn(open_to, f"chmod 700 {value}")),
        (goes, warn(gone, lingering)),
        otherwise=ok(value),
    )


async def _versions(call: DoctorCall) -> Finding:
    found = dict.fromkeys(("scrun", "Python", "Slurm", *_TOOLS), "")
    found |= {"scrun": VERSION, "Python": platform.python_version()}
    problem = ""

    async def ask(name: str) -> None:
        if path := call.which(name):
            with trio.move_on_after(8):
                done = await run_tool([path, *_TOOLS[name], "--version"], call.child_env)
                number = re.search(r"version ([^\s,]+)", " ".join(done.lines))
                found[name] = number[1] if number else "?"

    async with trio.open_nursery() as nursery:
        for name in _TOOLS:
            nursery.start_soon(ask, name)
        try:
            if version := await slurm_version(call):
                found["Slurm"] = str(version)
                features(version)
        except ScrunError as error:
            problem = str(error)
    text = ", ".join(f"{name} {number}" for name, number in found.items() if number)
    if (first_found := call.which("scrun")) and not launcher.is_ours(first_found):
        text = f"{text}; {first_found}, another scrun, comes first in PATH: Slurm has one, too"
        return warn(text, "put the directory of this one before it in PATH")
    if not problem:
        return ok(text)
    remedy = "install a supported version of Slurm, or use --engine local"
    return (fail if call.by_slurm else warn)(f"{text}; {problem}", remedy)


def _settings(call: DoctorCall) -> Finding:
    if error := call.errors.get("settings"):
        return fail(error, "correct that; until then no container can be created")
    listed = sources.files(call.environment, call.parsed.text("config-file"))
    there = ", ".join(path for path, _ in listed if os.path.exists(path))
    return ok(there or f"the defaults, without {' or '.join(p for p, _ in listed)}")


def _limits(call: DoctorCall) -> Finding:
    del call
    left = "; ".join(still_limited())
    remedy = "it would end or limit all containers: start the first one in a shell without it"
    return warn(left, remedy) if left else ok("none that cannot be raised")


def _root(call: DoctorCall) -> Finding:
    reason = _unusable(call.root) if call.root else call.errors["root"]
    remedy = "name another one by --root, or `root` in scrun.toml"
    return fail(reason, remedy) if reason else ok(call.root)


def _unusable(root: str) -> str:
    """Return why a root directory cannot have records, or ""; creates nothing lasting."""
    if os.path.lexists(root):
        try:
            own_directory(root)
        except ScrunError as error:
            return str(error).partition("; ")[0]
        return "" if os.access(root, os.W_OK | os.X_OK) else f"{root}: is not writable"
    above = _existing(os.path.dirname(root))
    if not os.access(above, os.W_OK | os.X_OK):
        return f"{root}: does not exist, and {above} is not writable"
    return ""


def _existing(path: str) -> str:
    """Return the lowest directory of a path that exists."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _runtime_dir(call: DoctorCall) -> Finding:
    value, uid = call.environment.get("XDG_RUNTIME_DIR", ""), os.geteuid()
    try:
        status = os.stat(value)
    except OSError:
        return judge_runtime_dir(value, None, 0, uid)
    owner = status.st_uid if stat.S_ISDIR(status.st_mode) else None
    return judge_runtime_dir(value, owner, status.st_mode, uid, goes=_goes(value))


def _goes(path: str) -> bool:
    """Return whether systemd-logind removes a directory (loginctl(1), enable-linger)."""
    uid = os.geteuid()
    if uid == 0 or not os.path.isdir("/run/systemd/system") or path != f"/run/user/{uid}":
        return False
    return not os.path.exists(f"/var/lib/systemd/linger/{user_name(uid)}")


def _left_behind(call: DoctorCall) -> Finding:
    """Look for records of dead supervisors, and release what those left behind."""
    new = not call.root or call.root_is_new
    found = [] if new else abandoned_records(call.root)
    if not found:
        return ok("nothing")
    tidy_up(call.parsed, call.root)
    containers = ", ".join(os.path.basename(directory) for directory in found)
    return warn(
        f"by dead supervisors: {containers}; their jobs are being released now",
        "call scrun delete for each of them; `scrun logs --supervisor` shows failures to release",
    )


async def _namespaces(call: DoctorCall) -> Finding:
    """Try to make one: a site can forbid them in many ways."""
    command = [own_program("unshare"), "--user", "--map-root-user", own_program("true")]
    done = await run_tool(command, call.child_env)
    refusal = done.said[-1].removeprefix("unshare: ") if done.status else ""
    texts = {name: (_read(f"/proc/sys/{name}") or "").strip() for name, _, _ in _FORBIDS}
    values = {name: int(text) for name, text in texts.items() if text.isdecimal()}
    return judge_namespaces(refusal, values, needed=not call.by_slurm and os.geteuid() != 0)


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


async def _subordinate(call: DoctorCall) -> Finding:
    uid = os.geteuid()
    user = user_name(uid)
    texts = [_read("/etc/subuid"), _read("/etc/subgid")]
    if tool := call.which("getsubids"):  # they may come from LDAP (nsswitch.conf, subid)
        for number, option in enumerate(([], ["-g"])):
            done = await run_tool([tool, *option, user], call.child_env)
            ranges = (re.search(r"(\d+) (\d+)$", line) for line in done.lines)
            asked = [f"{user}:{found[1]}:{found[2]}" for found in ranges if found]
            texts[number] = "\n".join(asked) if asked else texts[number]
    return judge_ids(user, uid, *texts)


def _newuidmap(call: DoctorCall) -> Finding:
    """Check the programs that write id maps, and their privileges."""
    paths = {name: call.which(name) for name in ("newuidmap", "newgidmap")}
    missing = [
        f"{path} has neither the setuid bit nor a capability"
        if path
        else f"{name} is not installed"
        for name, path in paths.items()
        if not (path and _privileged(path))
    ]
    command = needs.remedy([needs.ID_MAPS], call.which, root=False)
    if missing:
        return warn(", ".join(missing), f"{command} (rootless podman needs it)")
    return ok("installed, and newgidmap")


def _privileged(path: str) -> bool:
    if os.stat(path).st_mode & stat.S_ISUID:
        return True
    try:
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False


def _images(call: DoctorCall) -> Finding:
    wanted = call.settings.images
    path = path_for(call.settings, call.environment)
    unusable = [reason for one in wanted.also if (reason := _why_not(one))]
    if unusable:
        return warn(unusable[0], "correct `also` in the section [images]")
    text = f"{path}: not used yet"
    if os.path.isdir(path):
        entries = Store(path).entries()
        used, limit = size_of(entries), wanted.size << 20
        of = f" of {limit / _GIB:.1f}" if limit else ""
        text = f"{path}: {len(entries)} images and layers, {used / _GIB:.1f}{of} GiB"
        if limit and used > limit:
            avoids = "a larger `size` in the section [images] avoids waiting"
            return warn(text, f"containers use all of it; {avoids}")
    return judge_images_here(text, *_why_no_images(call)) if call.by_slurm else ok(text)


def judge_images_here(store: str, why_not: str, remedy: str) -> Finding:
    """Judge whether layers that nodes do not see get into the store, or `why_not`, as images."""
    if not why_not:
        return ok(f"{store}; layers that nodes do not see become squashfs images")
    text = f"{store}; each container whose layers its node does not see gets a copy of all"
    shared = "have engines keep their layers where the nodes see them"
    return warn(f"{text}: {why_not}", f"{remedy}, or {shared}")


def _why_no_images(call: DoctorCall) -> tuple[str, str]:
    """Return why there are no images of layers, and the remedy; "" twice if there are."""
    if call.which("mksquashfs") is None:
        return NO_TOOL, "apt install squashfs-tools"
    if call.settings.slurm.launch == "container":
        return "only a shim mounts images", 'set `launch = "auto"` in the section [slurm]'
    if not by_own_shim(call):
        return f"the commands of {call.oci_conf} mount none", "have a shim call the runtime"
    return "", ""


def _why_not(store: str) -> str:
    """Return why a store that is only read cannot be used, or ""."""
    if not os.path.isdir(store):
        return f"{store}: is not there"
    return of_path(store, reason) if (reason := replaceable(store)) else ""


def judge_podman(engine: dict[str, object], usable: str | None) -> Finding:
    """Judge what `podman.merged` returns; `usable`: the program that runs as `--runtime scrun`."""
    manager = engine.get("cgroup_manager")
    further = f"; cgroup manager {manager}" if manager else ""
    default = "; its default" if engine.get("runtime") == podman.NAME else ""
    named = ", ".join(podman.programs(engine))
    unusable = f"{engine.get('scrun named by')}: {named} cannot be run"
    return first(
        (usable is not None, ok(f"knows scrun as {usable}{default}{further}")),
        (named, warn(unusable, "run `scrun install podman` again")),
        otherwise=warn(f"does not know scrun{further}", "run `scrun install podman`"),
    )


def judge_docker(path: str, program: str | None, *, usable: bool) -> Finding:
    """Judge docker's file, and its program for scrun: "" is unclear, None is not there."""
    text = f"{path}: runtimes.scrun: {program or 'more than a path'} cannot be run"
    return first(
        (program is None, warn(f"does not know scrun ({path})", "run `scrun install docker`")),
        (usable, ok(f"{path}: knows scrun as {program}")),
        otherwise=warn(text, "correct it, or remove it and run scrun install docker"),
    )


def judge_storage(storage: podman.Storage, engine: str, why_no_owners: str = "") -> Finding:
    """Judge podman's storage; subordinate ids may own files there, or else this says why not."""
    if why_no_owners:
        return warn(
            f"{storage.graphroot}: files there cannot have an image's users ({why_no_owners})",
            "set graphroot in storage.conf to a file system where they can, such as a local disk; "
            "NFS does not work",
        )
    if engine != "slurm" or storage.driver in podman.WITHOUT_COPIES:
        return ok(f"driver {storage.driver}")
    what, _, remedy = podman.STORAGE.partition("; ")
    return warn(f"driver {storage.driver}: {what}", remedy)


def _own(call: DoctorCall) -> str | None:
    return None if os.geteuid() == 0 else home_config(call.environment)


def targets(call: DoctorCall) -> list[InstallTarget]:
    """Return the user's own files, and the machine's."""
    return [InstallTarget(place) for place in dict.fromkeys((_own(call), None))]


def _storage(call: DoctorCall) -> Finding:
    own = _own(call)
    storage = podman.storage(call.environment, own, home(call.environment))
    there = _existing(storage.graphroot)
    why = why_no_owners(there) if own and os.access(there, os.W_OK) else ""
    return judge_storage(storage, call.engine.name if call.engine else "", why)


def podman_settings(call: DoctorCall) -> dict[str, object]:
    """Return the section [engine] of podman's files."""
    return podman.merged(podman.files(call.environment, _own(call)))


def _podman(call: DoctorCall) -> Finding:
    engine = podman_settings(call)
    usable = (path for path in podman.programs(engine) if os.access(path, os.X_OK))
    return judge_podman(engine, next(usable, None))


def _docker(call: DoctorCall) -> Finding:
    """Check the user's own file, for rootless docker, and the machine's."""
    paths = [target.daemon for target in targets(call)]
    for path in paths:
        text = files.read(path)
        program = docker.entry(text, path) if text is not None else None
        if program is not None:
            usable = os.path.isfile(program) and os.access(program, os.X_OK)
            return judge_docker(path, program, usable=usable)
    return judge_docker(" and ".join(paths), None, usable=False)


def _packages(call: DoctorCall) -> Finding:
    """Check for the programs that containers need, and those of engines that are to know scrun."""
    engines: list[str] = []
    for name in (*ENGINES, API):
        with contextlib.suppress(SettingsError):  # the engine's own check says so
            engine = "podman" if name == API else name
            engines += [engine] * any(target.has(name) for target in targets(call))
    here = not call.by_slurm and call.settings.local.oci_conf is None
    root = os.geteuid() == 0
    lacking = needs.missing(
        dict.fromkeys(engines),
        call.which,
        here=here and (call.engine is None or call.engine.name == "local"),
        slurm=call.by_slurm and not call.settings.slurm.bin,
        rootless=not root,
    )
    return judge_packages(lacking, needs.remedy(lacking, call.which, root=root))


def judge_packages(lacking: list[needs.Need], remedy: str) -> Finding:
    if not lacking:
        return ok("all that is needed here is installed")
    return warn(f"not installed: {needs.names(lacking)}", remedy)


def _for_root(call: DoctorCall) -> str:
    del call
    return "root needs none" if os.geteuid() == 0 else ""


def _not_installed(program: str) -> Callable[[DoctorCall], str]:
    return lambda call: "" if call.which(program) else f"{program} is not installed"


_FILE = "correct that file"
_STORE = "set `store` in the section [images] of scrun.toml to a directory that nodes share"
BASICS = (
    Check(("versions",), one(_versions)),
    Check(("settings",), one(_settings)),
    Check(("limits",), one(_limits)),
    Check(("root directory",), one(_root)),
    Check(("XDG_RUNTIME_DIR",), one(_runtime_dir)),
    Check(("left behind",), one(_left_behind)),
)
CONTAINERS = (
    Check(("user namespaces",), one(_namespaces)),
    Check(("subordinate ids",), one(_subordinate), spared=_for_root),
    Check(("newuidmap",), one(_newuidmap), spared=_for_root),
    Check(("podman",), one(_podman), 15, _not_installed("podman"), "warn", _FILE),
    Check(("podman's storage",), one(_storage), 15, _not_installed("podman"), "warn", _FILE),
    Check(("docker",), one(_docker), 15, _not_installed("dockerd"), "warn", _FILE),
    Check(("packages",), one(_packages)),
    Check(("images",), one(_images), status="warn", remedy=_STORE),
)
