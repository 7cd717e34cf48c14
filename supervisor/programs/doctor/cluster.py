"""Checks of Slurm from this machine: nothing runs on the nodes."""

import contextlib
import os
import re

import trio

from scrun.core.errors import ScrunError, SettingsError
from scrun.settings.file.load import Log, load
from scrun.settings.oci_conf.parse import OciConf, parse_oci_conf
from scrun.settings.oci_conf.shell_commands import program_of
from scrun.settings.oci_conf.site import beside
from scrun.settings.slurm.versions import features
from scrun.settings.slurm_conf import PLACES, find_slurm_conf, read_conf, read_slurm_conf
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.programs.doctor.findings import Finding
from scrun.supervisor.programs.doctor.place import Check, DoctorCall, Tell, run_tool, slurm_version
from scrun.supervisor.scripts.find import find_script, site_of
from scrun.supervisor.scripts.host import loaded

_MUNGE = "/run/munge/munge.socket.2"


# --- judgements


def judge_ping(status: int, lines: tuple[str, ...]) -> Finding:
    """Judge the answer of `scontrol ping`: `Slurmctld(primary) at HOST is UP`."""
    name = "slurmctld"
    heard = [line.strip() for line in lines if re.search(r" is (UP|DOWN)\s*$", line)]
    if any(line.endswith("UP") for line in heard):
        return Finding(name, "ok", ", ".join(heard))
    text = ", ".join(heard) or (lines[-1].strip() if lines else f"scontrol ping: status {status}")
    remedy = "start it, or make its host and port (SlurmctldHost, SlurmctldPort) reachable"
    return Finding(name, "fail", text, remedy)


def judge_nodes(lines: tuple[str, ...]) -> Finding:
    """Judge the answer of `sinfo -h -o '%R %a %D %t'`: partition, up or down, number, state."""
    name = "nodes"
    usable = total = 0
    for fields in map(str.split, lines):
        if len(fields) == 4 and fields[2].isdecimal():
            total += int(fields[2])
            state = fields[3].rstrip("*~#!%$@^-+")
            # a star: the node does not answer
            if fields[1] == "up" and "*" not in fields[3] and state in _USABLE:
                usable += int(fields[2])
    if usable:
        return Finding(name, "ok", f"{usable} of {total} can run jobs")
    remedy = "ask the administrator; `sinfo -R` shows why nodes are down"
    return Finding(name, "warn", f"none of {total} can run jobs now", remedy)


_USABLE = ("idle", "mix", "mixed", "alloc", "allocated", "comp", "completing", "planned", "plnd")


def judge_oci_conf(
    path: str, conf: OciConf, missing: dict[str, str], *, mounts_spool: bool = False
) -> Finding:
    """Judge a readable oci.conf.

    Args:
        path: The file.
        conf: Its content.
        missing: Programs that are not on this machine, by key.
        mounts_spool: Whether Slurm mounts the step's directory into each container.
    """
    name = "oci.conf"
    complaints = []
    if conf.ignore_file_config_json:
        text = f"{path}: IgnoreFileConfigJson is set, so Slurm runs no OCI runtime"
        return Finding(name, "fail", text, "remove it, and set RunTimeRun")
    run = (conf.run_time_run or "").split()
    if conf.mode == "run" and run[:1] != ["exec"]:
        # measured with 22.05: the shell around it gets the step's signals too, and dies before it
        complaints.append(("RunTimeRun does not begin with exec", "write exec before its command"))
    if mounts_spool and conf.mount_spool_dir is None:
        # measured with 24.11 and 26.05: "mkdir `/var/run`: Permission denied"
        fact = "MountSpoolDir is not set, so root file systems need to be writable"
        complaints.append((fact, "set MountSpoolDir=/dev/slurm, which is made in memory"))
    complaints += [
        (f"line {remark.removeprefix(f'{path}:')}", "remove one") for remark in conf.remarks
    ]
    for key, program in missing.items():
        complaints.append(
            (
                f"{program} ({key}) is not on this machine",
                "install it on the nodes, unless it is there",
            )
        )
    if complaints:
        text = f"{path}: " + ", ".join(text for text, _ in complaints)
        return Finding(name, "warn", text, ", ".join(remedy for _, remedy in complaints))
    way = "RunTimeRun" if conf.mode == "run" else "RunTimeCreate and RunTimeStart"
    return Finding(name, "ok", f"{path}: {way}")


# --- checks


async def _engine(place: DoctorCall, tell: Tell) -> None:
    if place.engine is None:
        tell(Finding("engine", "fail", place.engine_error, "or use --engine local"))
        return
    asked = place.settings.engine
    if asked != "auto":
        text = f"{asked}, from the settings or the command line"
    elif place.tools is not None:
        text = f"slurm, because {place.conf} and {place.tools.salloc} exist"
    elif place.conf is None:
        text = "local, because no slurm.conf was found"
    else:
        text = f"local, because Slurm's commands are not found (slurm.conf is {place.conf})"
    tell(Finding("engine", "ok", text))


async def _slurm_conf(place: DoctorCall, tell: Tell) -> None:
    name = "slurm.conf"
    if not place.by_slurm:
        tell(Finding(name, "ok", "not needed"))
    elif place.conf is None:
        remedy = "name it by SLURM_CONF, -f, or `conf` in the section [slurm] of scrun.toml"
        tell(Finding(name, "warn", "not found; Slurm's commands use their own default", remedy))
    else:
        tell(await trio.to_thread.run_sync(_read_conf, place, abandon_on_cancel=True))


def _read_conf(place: DoctorCall) -> Finding:
    name, conf = "slurm.conf", place.conf or ""
    try:
        found = read_slurm_conf(conf)
    except SettingsError as error:
        remedy = "name another one by SLURM_CONF, -f, or `conf` in the section [slurm]"
        return Finding(name, "fail", str(error), remedy)
    text = f"{conf}: cluster {found.get('clustername', 'without a name')}"
    if _only_here(place, conf):
        return Finding(
            name,
            "warn",
            f"{text}; only SLURM_CONF or -f names it, which engines do not pass on",
            "run `scrun install podman`, or name it as `conf` in [slurm] of scrun.toml",
        )
    return Finding(name, "ok", text)


def _only_here(place: DoctorCall, conf: str) -> bool:
    """Return whether a container engine's call would find another slurm.conf, or none."""
    if place.settings_error or not (place.which("podman") or place.which("dockerd")):
        return False
    try:
        return find_slurm_conf(load({}), PLACES) != conf
    except SettingsError:
        return False


async def _munge(place: DoctorCall, tell: Tell) -> None:
    tell(await ask_munge(place))


async def ask_munge(place: DoctorCall) -> Finding:
    """Make and read a munge credential, through the socket that slurm.conf names."""
    name = "munge"
    if not place.by_slurm:
        return Finding(name, "ok", "not needed")
    found: dict[str, str] = {}
    if place.conf is not None:
        try:
            found = await trio.to_thread.run_sync(
                read_slurm_conf, place.conf, abandon_on_cancel=True
            )
        except SettingsError:
            pass  # the check of slurm.conf reports this
    kind = found.get("authtype", "auth/munge")
    if kind != "auth/munge":
        return Finding(name, "ok", f"not used: AuthType is {kind}")
    socket = munge_socket(found.get("authinfo", ""))
    remedy = "start munge (systemctl start munge), with the same key on all machines"
    if not await trio.Path(socket).exists():
        return Finding(name, "fail", f"{socket}: does not exist", remedy)
    munge, unmunge = place.which("munge"), place.which("unmunge")
    if munge is None or unmunge is None:
        return Finding(name, "ok", f"{socket} exists (no commands munge and unmunge to try it)")
    script = '"$1" -n -S "$3" | "$2" -S "$3"'
    command = ["/bin/sh", "-c", script, "sh", munge, unmunge, socket]
    done = await run_tool(command, place.slurm_setting)
    if done.status:
        return Finding(name, "fail", done.first, remedy)
    return Finding(name, "ok", f"{socket} answers")


async def mute(place: DoctorCall) -> str:
    """Return why Slurm's commands cannot work (they would try for long), or ""."""
    if await place.lacks_conf():
        return f"{place.conf} cannot be read"
    if (await ask_munge(place)).status == "fail":
        return "munge does not work"
    return ""


def munge_socket(info: str) -> str:
    """Return munge's socket from AuthInfo: `socket=PATH` in a list with commas."""
    for word in info.split(","):
        if word.strip().startswith("socket="):
            return word.strip().removeprefix("socket=")
    return _MUNGE


async def _controller(place: DoctorCall, tell: Tell) -> None:
    names = ("slurmctld", "nodes")
    if not place.by_slurm:
        for name in names:
            tell(Finding(name, "ok", "not needed"))
        return
    if (await ask_munge(place)).status == "fail":  # Slurm's commands try for half a minute then
        tell(
            Finding("slurmctld", "warn", "not asked: munge does not work", "put that right first")
        )
        return
    scontrol, sinfo = place.slurm_tool("scontrol"), place.slurm_tool("sinfo")
    if scontrol is None:
        remedy = "install Slurm's client commands (apt install slurm-client)"
        tell(Finding("slurmctld", "warn", "scontrol is not installed to ask it", remedy))
    else:
        done = await run_tool([scontrol, "ping"], place.slurm_setting)
        finding = judge_ping(done.status, done.lines)
        tell(finding)
        if finding.status != "ok":
            return
    if sinfo is None:
        remedy = "install Slurm's client commands (apt install slurm-client)"
        tell(Finding("nodes", "warn", "sinfo is not installed to ask about them", remedy))
    else:
        done = await run_tool([sinfo, "-h", "-o", "%R %a %D %t"], place.slurm_setting)
        if done.status:
            tell(Finding("nodes", "fail", done.last, "see slurmctld's log"))
        else:
            tell(judge_nodes(done.lines))


async def _oci_conf(place: DoctorCall, tell: Tell) -> None:
    name = "oci.conf"
    if not place.by_slurm:
        tell(Finding(name, "ok", "not needed"))
        return
    version = None
    with contextlib.suppress(ScrunError):  # the finding `versions` reports this
        version = await slurm_version(place)
    mounts_spool = version is not None and features(version).mounts_spool
    tell(
        await trio.to_thread.run_sync(_read_oci_conf, place, mounts_spool, abandon_on_cancel=True)
    )


def oci_conf_path(place: DoctorCall) -> str:
    """Return the path where Slurm looks for oci.conf: beside slurm.conf."""
    return beside(place.conf)


def read_oci_conf(place: DoctorCall) -> OciConf:
    """Read the oci.conf.

    Raises:
        SettingsError: It is not valid, or cannot be read.
    """
    path = oci_conf_path(place)
    return parse_oci_conf(read_conf(path), path)


def _read_oci_conf(place: DoctorCall, mounts_spool: bool) -> Finding:
    path = oci_conf_path(place)
    remedy = "write it as described in oci.conf(5), on this machine and on the nodes"
    try:
        os.stat(path)
        conf = read_oci_conf(place)
    except OSError as error:
        return Finding("oci.conf", "fail", f"{path}: {error.strerror}", remedy)
    except SettingsError as error:
        return Finding("oci.conf", "fail", str(error), "correct it, here and on the nodes")
    missing: dict[str, str] = {}
    for key, pattern in conf.commands.items():
        program = program_of(pattern)
        if program and place.which(program) is None and program not in missing.values():
            missing[key] = program
    return judge_oci_conf(path, conf, missing, mounts_spool=mounts_spool)


async def _script(place: DoctorCall, tell: Tell) -> None:
    """Find and load scrun.lua, as `create` does."""
    name = "scrun.lua"
    engine = place.engine.name if place.engine else "local"
    try:
        path = await trio.to_thread.run_sync(
            find_script, place.settings, engine, abandon_on_cancel=True
        )
        if path is None:
            stager = place.settings.stager
            other = stager not in ("auto", "builtin")
            text = f"not used: the stager is {stager}" if other else "none: the built-in staging"
            tell(Finding(name, "ok", text))
            return
        journal = Journal("/dev/null", Log(), "doctor")
        try:
            async with loaded(
                path, place.settings.lua, place.child_env, place.directory, journal,
                await trio.to_thread.run_sync(site_of, place.settings),
            ):  # fmt: skip
                pass
        finally:
            journal.close()
    except ScrunError as error:
        tell(Finding(name, "fail", str(error), "`scrun lua check FILE` tells more"))
    else:
        tell(Finding(name, "ok", f"{path}: loaded by Lua {place.settings.lua.version}"))


CHECKS = (
    Check(("engine",), _engine),
    Check(("slurm.conf",), _slurm_conf),
    Check(("munge",), _munge),
    Check(("slurmctld", "nodes"), _controller),
    Check(("oci.conf",), _oci_conf),
    Check(("scrun.lua",), _script, deadline=30),
)
