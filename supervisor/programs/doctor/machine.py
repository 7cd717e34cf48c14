"""Checks of this machine and of scrun's own files, with pure functions that judge."""

import os
import platform
import re
import stat

import msgspec
import trio

from scrun.client.orphan import tidy_up
from scrun.core.errors import ScrunError
from scrun.core.own_directory import own_directory
from scrun.core.users import user_name
from scrun.core.version import VERSION
from scrun.install import needs
from scrun.settings.file import sources
from scrun.settings.slurm.versions import features
from scrun.supervisor.children.processes import own_program
from scrun.supervisor.containers.successor import abandoned_records
from scrun.supervisor.core.limits import still_limited
from scrun.supervisor.programs.doctor.call import (
    Check,
    DoctorCall,
    Reporter,
    run_tool,
    slurm_version,
)
from scrun.supervisor.programs.doctor.findings import Finding

_TOOLS = (
    ("podman", "podman", re.compile(r"version (\S+)")),
    ("docker", "docker", re.compile(r"version (\S+?),")),
    ("crun", "crun", re.compile(r"version (\S+)")),
    ("runc", "runc", re.compile(r"version (\S+)")),
)


# --- judgements


class Namespaces(msgspec.Struct, frozen=True):
    """The state of user namespaces.

    Attributes:
        refusal: The kernel's error when trying to make one, or "".
        most: /proc/sys/user/max_user_namespaces; None where it is missing, as the next two.
        unprivileged: Debian's kernel.unprivileged_userns_clone.
        restricted: Ubuntu's kernel.apparmor_restrict_unprivileged_userns.
    """

    refusal: str = ""
    most: int | None = None
    unprivileged: int | None = None
    restricted: int | None = None


def judge_namespaces(seen: Namespaces, *, needed: bool) -> Finding:
    """Judge whether this user can make a user namespace.

    Args:
        seen: The state of user namespaces.
        needed: Whether containers run on this machine, as an ordinary user.
    """
    name = "user namespaces"
    if not seen.refusal:
        return Finding(name, "ok", "can be made")
    if seen.most == 0:
        remedy = "sysctl user.max_user_namespaces=10000"
    elif seen.unprivileged == 0:
        remedy = "sysctl kernel.unprivileged_userns_clone=1"
    elif seen.restricted == 1:
        remedy = "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or a profile for AppArmor"
    else:
        remedy = "check what forbids it: seccomp, SELinux, or an outer container"
    if not needed:
        remedy += (
            " (rootless podman needs it; without it `create` returns pids in host namespaces)"
        )
    return Finding(name, "fail" if needed else "warn", f"not permitted: {seen.refusal}", remedy)


def count_ranges(
    user: str, uid: int, subuid: str | None, subgid: str | None
) -> tuple[str, int, int]:
    """Count a user's subordinate ids.

    Args:
        user: The user's name.
        uid: The user's id; a line may have either.
        subuid: The text of /etc/subuid, or None.
        subgid: The text of /etc/subgid, or None.

    Returns:
        The user's name, and the number of subordinate uids and gids.
    """
    return user, needs.count_ids(subuid, user, uid), needs.count_ids(subgid, user, uid)


def judge_ids(user: str, uids: int, gids: int) -> Finding:
    """Judge the number of ids that rootless podman can map."""
    name = "subordinate ids"
    if min(uids, gids) >= needs.WANTED_IDS:
        return Finding(name, "ok", f"{uids} users, {gids} groups")
    found = f"{uids} users and {gids} groups in /etc/subuid and /etc/subgid for {user}"
    return Finding(name, "warn", found, needs.ids_remedy(user))


class DirectoryMode(msgspec.Struct, frozen=True):
    """The owner and mode of a directory."""

    uid: int
    mode: int


def judge_runtime_dir(
    value: str, seen: DirectoryMode | None, uid: int, *, goes: bool = False
) -> Finding:
    """Judge XDG_RUNTIME_DIR (basedir-spec: the user's own, 0700).

    Args:
        value: The variable, or "".
        seen: The directory, or None.
        uid: The user.
        goes: Whether systemd removes it when the user's last session ends (no lingering).
    """
    name = "XDG_RUNTIME_DIR"
    remedy = (
        f"log in again, or: loginctl enable-linger; else make /run/user/{uid}, mode 700, yours"
    )
    if not value:
        if uid == 0:
            return Finding(name, "ok", "not set; root does not need it")
        return Finding(name, "warn", "not set", remedy + ", and set it")
    if not value.startswith("/"):
        return Finding(name, "fail", f"{value}: not an absolute path", remedy + ", and set it")
    if seen is None:
        return Finding(name, "fail", f"{value}: does not exist", remedy)
    if seen.uid != uid:
        return Finding(name, "fail", f"{value}: belongs to uid {seen.uid}", remedy)
    if seen.mode & 0o077:
        found = f"{value}: mode {seen.mode & 0o777:o}: other users have access"
        return Finding(name, "warn", found, f"chmod 700 {value}")
    if goes:
        found = f"{value}: removed when your last session ends, with the records of containers"
        remedy = (
            "loginctl enable-linger; without it records of jobs are restored only when you log in "
            "again, and containers on this machine may end"
        )
        return Finding(name, "warn", found, remedy)
    return Finding(name, "ok", value)


# --- checks


async def _versions(call: DoctorCall, report: Reporter) -> None:
    found = {"scrun": VERSION, "Python": platform.python_version()}
    problem = ""

    async def ask(name: str, program: str, pattern: re.Pattern[str]) -> None:
        path = call.which(program)
        if path is None:
            return
        with trio.move_on_after(8):
            done = await run_tool([path, "--version"], call.child_env)
            number = pattern.search(" ".join(done.lines))
            found[name] = number[1] if number else "?"

    async def ask_slurm() -> None:
        nonlocal problem
        try:
            if version := await slurm_version(call):
                found["Slurm"] = str(version)
                features(version)
        except ScrunError as error:
            problem = str(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_slurm)
        for tool in _TOOLS:
            nursery.start_soon(ask, *tool)
    names = ("scrun", "Python", "Slurm", *(name for name, _, _ in _TOOLS))
    text = ", ".join(f"{name} {found[name]}" for name in names if name in found)
    if problem:
        status = "fail" if call.by_slurm else "warn"
        remedy = "install a supported version of Slurm, or use --engine local"
        report(Finding("versions", status, f"{text}; {problem}", remedy))  # type: ignore[arg-type]
    else:
        report(Finding("versions", "ok", text))


async def _settings(call: DoctorCall, report: Reporter) -> None:
    if call.settings_error:
        remedy = "correct that; until then no container can be created"
        report(Finding("settings", "fail", call.settings_error, remedy))
        return
    listed = sources.files(call.child_env.environment, call.parsed.text("config-file"))
    there = [path for path, _ in listed if await _in_thread_exists(path)]
    text = ", ".join(there) or f"the defaults, without {' or '.join(p for p, _ in listed)}"
    report(Finding("settings", "ok", text))


async def _in_thread_exists(path: str) -> bool:
    return await trio.to_thread.run_sync(os.path.exists, path, abandon_on_cancel=True)


async def _limits(call: DoctorCall, report: Reporter) -> None:
    del call
    if left := still_limited():
        remedy = "it would end or limit all containers: start the first one in a shell without it"
        report(Finding("limits", "warn", "; ".join(left), remedy))
    else:
        report(Finding("limits", "ok", "none that cannot be raised"))


async def _root(call: DoctorCall, report: Reporter) -> None:
    name = "root directory"
    remedy = "name another one by --root, or `root` in scrun.toml"
    if not call.root:
        report(Finding(name, "fail", call.root_error, remedy))
        return
    reason = await trio.to_thread.run_sync(_unusable, call.root, abandon_on_cancel=True)
    if reason:
        report(Finding(name, "fail", reason, remedy))
    else:
        report(Finding(name, "ok", call.root))


def _unusable(root: str) -> str:
    """Return why a root directory cannot have records, or ""; creates nothing lasting."""
    if os.path.lexists(root):
        try:
            own_directory(root)
        except ScrunError as error:
            return str(error).partition("; ")[0]
        return "" if os.access(root, os.W_OK | os.X_OK) else f"{root}: is not writable"
    above = os.path.dirname(root)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.access(above, os.W_OK | os.X_OK):
        return f"{root}: does not exist, and {above} is not writable"
    return ""


async def _runtime_dir(call: DoctorCall, report: Reporter) -> None:
    value = call.environment.get("XDG_RUNTIME_DIR", "")
    seen = await trio.to_thread.run_sync(_look, value, abandon_on_cancel=True)
    goes = await trio.to_thread.run_sync(_goes, value, abandon_on_cancel=True)
    report(judge_runtime_dir(value, seen, os.geteuid(), goes=goes))


def _goes(path: str) -> bool:
    """Return whether systemd-logind removes a directory (loginctl(1), enable-linger)."""
    uid = os.geteuid()
    if uid == 0 or not os.path.isdir("/run/systemd/system") or path != f"/run/user/{uid}":
        return False
    return not os.path.exists(f"/var/lib/systemd/linger/{user_name(uid)}")


async def _left_behind(call: DoctorCall, report: Reporter) -> None:
    """Look for records of dead supervisors, and release what those left behind."""
    name = "left behind"
    if not call.root or call.root_is_new:
        report(Finding(name, "ok", "nothing"))
        return
    found = await trio.to_thread.run_sync(abandoned_records, call.root, abandon_on_cancel=True)
    if not found:
        report(Finding(name, "ok", "nothing"))
        return
    await trio.to_thread.run_sync(tidy_up, call.parsed, call.root, abandon_on_cancel=True)
    containers = ", ".join(os.path.basename(directory) for directory in found)
    report(
        Finding(
            name,
            "warn",
            f"by dead supervisors: {containers}; their jobs are being released now",
            "call scrun delete for each of them; `scrun logs --supervisor` shows failures to "
            "release",
        )
    )


def _look(path: str) -> DirectoryMode | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return DirectoryMode(status.st_uid, status.st_mode) if stat.S_ISDIR(status.st_mode) else None


async def _namespaces(call: DoctorCall, report: Reporter) -> None:
    """Try to make one: a site can forbid them in many ways."""
    command = [own_program("unshare"), "--user", "--map-root-user", own_program("true")]
    done = await run_tool(command, call.child_env)
    seen = Namespaces(
        refusal=done.last.removeprefix("unshare: ") if done.status else "",
        most=_number("/proc/sys/user/max_user_namespaces"),
        unprivileged=_number("/proc/sys/kernel/unprivileged_userns_clone"),
        restricted=_number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
    )
    report(judge_namespaces(seen, needed=not call.by_slurm and os.geteuid() != 0))


def _number(path: str) -> int | None:
    text = _read(path)
    return int(text) if text is not None and text.strip().isdecimal() else None


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


async def _subordinate(call: DoctorCall, report: Reporter) -> None:
    names = ("subordinate ids", "newuidmap")
    uid = os.geteuid()
    if uid == 0:
        for name in names:
            report(Finding(name, "ok", "root needs none"))
        return
    user = user_name(uid)
    texts = [_read("/etc/subuid"), _read("/etc/subgid")]
    if tool := call.which("getsubids"):  # they may come from LDAP (nsswitch.conf, subid)
        for number, option in enumerate(([], ["-g"])):
            done = await run_tool([tool, *option, user], call.child_env)
            ranges = (re.search(r"(\d+) (\d+)$", line) for line in done.lines)
            asked = [f"{user}:{found[1]}:{found[2]}" for found in ranges if found]
            texts[number] = "\n".join(asked) if asked else texts[number]
    report(judge_ids(*count_ranges(user, uid, *texts)))
    report(_newuidmap(call))


def _newuidmap(call: DoctorCall) -> Finding:
    """Check the programs that write id maps, and their privileges."""
    missing = []
    for name in ("newuidmap", "newgidmap"):
        path = call.which(name)
        if path is None:
            missing.append(f"{name} is not installed")
        elif not _privileged(path):
            missing.append(f"{path} has neither the setuid bit nor a capability")
    if missing:
        command = needs.remedy([needs.ID_MAPS], call.which, root=False)
        remedy = f"{command} (rootless podman needs it)"
        return Finding("newuidmap", "warn", ", ".join(missing), remedy)
    return Finding("newuidmap", "ok", "installed, and newgidmap")


def _privileged(path: str) -> bool:
    if os.stat(path).st_mode & stat.S_ISUID:
        return True
    try:
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False


BASICS = (
    Check(("versions",), _versions),
    Check(("settings",), _settings),
    Check(("limits",), _limits),
    Check(("root directory",), _root),
    Check(("XDG_RUNTIME_DIR",), _runtime_dir),
    Check(("left behind",), _left_behind),
)
NAMESPACES = (
    Check(("user namespaces",), _namespaces),
    Check(("subordinate ids", "newuidmap"), _subordinate),
)
