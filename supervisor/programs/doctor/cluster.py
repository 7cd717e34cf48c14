"""Checks of Slurm from this machine: nothing runs on the nodes."""

import contextlib
import os
import re

import trio

from scrun.core.errors import ScrunError, SettingsError
from scrun.oci.signals import its_end
from scrun.settings.file.load import Log, load
from scrun.settings.oci_conf.parse import OciConf
from scrun.settings.script import find_script, site_of
from scrun.settings.slurm.versions import features
from scrun.settings.slurm_conf import PLACES, find_slurm_conf, read_slurm_conf
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.programs.doctor.call import (
    Check,
    DoctorCall,
    Reporter,
    one,
    read_oci_conf,
    run_tool,
    slurm_version,
    without_slurm,
)
from scrun.supervisor.programs.doctor.findings import Finding, fail, first, ok, warn
from scrun.supervisor.scripts.host import loaded

_MUNGE = "/run/munge/munge.socket.2"


def judge_ping(status: int, lines: tuple[str, ...]) -> Finding:
    """Judge the answer of `scontrol ping`: `Slurmctld(primary) at HOST is UP`."""
    answers = [line.strip() for line in lines if re.search(r" is (UP|DOWN)\s*$", line)]
    if any(line.endswith("UP") for line in answers):
        return ok(", ".join(answers))
    last = lines[-1].strip() if lines else f"scontrol ping {its_end(status)}"
    remedy = "start it, or make its host and port (SlurmctldHost, SlurmctldPort) reachable"
    return fail(", ".join(answers) or last, remedy)


def judge_nodes(lines: tuple[str, ...]) -> Finding:
    """Judge the answer of `sinfo -h -o '%R %a %D %t'`: partition, up or down, number, state."""
    usable = total = 0
    for fields in map(str.split, lines):
        if len(fields) == 4 and fields[2].isdecimal():
            total += int(fields[2])
            state = fields[3].rstrip("*~#!%$@^-+")
            # a star: the node does not answer
            if fields[1] == "up" and "*" not in fields[3] and state in _USABLE:
                usable += int(fields[2])
    if usable:
        return ok(f"{usable} of {total} can run jobs")
    remedy = "ask the administrator; `sinfo -R` shows why nodes are down"
    return warn(f"none of {total} can run jobs now", remedy)


_USABLE = ("idle", "mix", "mixed", "alloc", "allocated", "comp", "completing", "planned", "plnd")


def judge_oci_conf(
    path: str,
    conf: OciConf,
    missing: dict[str, str],
    *,
    mounts_spool: bool = False,
    by_slurm: bool = True,
) -> Finding:
    """Judge a readable oci.conf.

    `missing` are programs that are not on this machine, by key. `mounts_spool` says whether Slurm
    mounts the step's directory into each container. `by_slurm` says whether Slurm runs the
    commands, and no shim, which does not mind the rest.
    """
    if conf.ignore_file_config_json and by_slurm:
        text = f"{path}: IgnoreFileConfigJson is set, so Slurm runs no OCI runtime"
        return fail(text, "remove it, and set RunTimeRun")
    complaints = {}
    run = (conf.run_time_run or "").split()
    if by_slurm and conf.mode == "run" and run[:1] != ["exec"]:
        # measured with 22.05: the shell around it gets the step's signals too, and dies before it
        complaints["RunTimeRun does not begin with exec"] = "write exec before its command"
    if by_slurm and mounts_spool and conf.mount_spool_dir is None:
        # measured with 24.11 and 26.05: "mkdir `/var/run`: Permission denied"
        fact = "MountSpoolDir is not set, so root file systems need to be writable"
        complaints[fact] = "set MountSpoolDir=/dev/slurm, which is made in memory"
    for remark in conf.remarks:
        complaints[f"line {remark.removeprefix(f'{path}:')}"] = "remove one"
    for key, program in missing.items():
        fact = f"{program} ({key}) is not on this machine"
        complaints[fact] = "install it on the nodes, unless it is there"
    if complaints:
        return warn(f"{path}: {', '.join(complaints)}", ", ".join(complaints.values()))
    way = "RunTimeRun" if conf.mode == "run" else "RunTimeCreate and RunTimeStart"
    return ok(f"{path}: {way}")


def _engine(call: DoctorCall) -> Finding:
    if call.engine is None:
        return fail(call.errors["engine"], "or use --engine local")
    asked, conf, tools = call.settings.engine, call.conf, call.tools
    salloc = tools.salloc if tools else ""
    return first(
        (asked != "auto", ok(f"{asked}, from the settings or the command line")),
        (tools, ok(f"slurm, because {conf} and {salloc} exist")),
        (conf is None, ok("local, because no slurm.conf was found")),
        otherwise=ok(f"local, because Slurm's commands are not found (slurm.conf is {conf})"),
    )


def _slurm_conf(call: DoctorCall) -> Finding:
    if call.conf is None:
        remedy = "name it by SLURM_CONF, -f, or `conf` in the section [slurm] of scrun.toml"
        return warn("not found; Slurm's commands use their own default", remedy)
    found = read_slurm_conf(call.conf)
    text = f"{call.conf}: cluster {found.get('clustername', 'without a name')}"
    if _only_here(call, call.conf):
        return warn(
            f"{text}; only SLURM_CONF or -f names it, which engines do not pass on",
            "run `scrun install podman`, or name it as `conf` in [slurm] of scrun.toml",
        )
    return ok(text)


def _only_here(call: DoctorCall, conf: str) -> bool:
    """Return whether a container engine's call would find another slurm.conf, or none."""
    if "settings" in call.errors or not (call.which("podman") or call.which("dockerd")):
        return False
    try:
        return find_slurm_conf(load({}), PLACES) != conf
    except SettingsError:
        return False


async def conf_of(call: DoctorCall) -> dict[str, str]:
    """Read slurm.conf; if that is not possible, its own check reports it."""
    with contextlib.suppress(SettingsError):
        return await in_thread(read_slurm_conf, call.conf, abandon=True) if call.conf else {}
    return {}


async def ask_munge(call: DoctorCall) -> Finding:
    """Make and read a munge credential, through the socket that slurm.conf names."""
    found = await conf_of(call)
    kind = found.get("authtype", "auth/munge")
    if kind != "auth/munge":
        return ok(f"not used: AuthType is {kind}")
    socket = munge_socket(found.get("authinfo", ""))
    remedy = "start munge (systemctl start munge), with the same key on all machines"
    if not await trio.Path(socket).exists():
        return fail(f"{socket}: does not exist", remedy)
    munge, unmunge = call.which("munge"), call.which("unmunge")
    if munge is None or unmunge is None:
        return ok(f"{socket} exists (no commands munge and unmunge to try it)")
    script = '"$1" -n -S "$3" | "$2" -S "$3"'
    command = ["/bin/sh", "-c", script, "sh", munge, unmunge, socket]
    done = await run_tool(command, call.slurm_setting)
    return fail(done.said[0], remedy) if done.status else ok(f"{socket} answers")


def munge_socket(info: str) -> str:
    """Return munge's socket from AuthInfo: `socket=PATH` in a list with commas."""
    for word in info.split(","):
        if word.strip().startswith("socket="):
            return word.strip().removeprefix("socket=")
    return _MUNGE


_WITHOUT_MUNGE = warn("not asked: munge does not work", "correct that first")


async def _controller(call: DoctorCall, report: Reporter) -> None:
    install = "install Slurm's client commands (apt install slurm-client)"
    if (await ask_munge(call)).status == "fail":  # Slurm's commands try for half a minute then
        report("slurmctld", _WITHOUT_MUNGE)
        return
    finding = await ping(call)
    report("slurmctld", finding or warn("scontrol is not installed to ask it", install))
    if finding and finding.status != "ok":
        return
    if (sinfo := call.slurm_tool("sinfo")) is None:
        report("nodes", warn("sinfo is not installed to ask about them", install))
        return
    done = await run_tool([sinfo, "-h", "-o", "%R %a %D %t"], call.slurm_setting)
    failed = fail(done.said[-1], "see slurmctld's log")
    report("nodes", failed if done.status else judge_nodes(done.lines))


async def ping(call: DoctorCall) -> Finding | None:
    """Ask slurmctld; None without scontrol."""
    if (scontrol := call.slurm_tool("scontrol")) is None:
        return None
    done = await run_tool([scontrol, "ping"], call.slurm_setting)
    found = judge_ping(done.status, done.lines)
    if found.status != "ok" and (sinfo := call.slurm_tool("sinfo")) and await _limits_rate(call):
        done = await run_tool([sinfo, "-h", "-o", "%R"], call.slurm_setting)
        if done.status == 0:
            text = "answers; `scontrol ping` says DOWN, as slurmctld limits its user (rl_enable)"
            return ok(text)
    return found


async def _limits_rate(call: DoctorCall) -> bool:
    """Return whether slurmctld may make a user wait: all tools but `ping` then try again."""
    return "rl_enable" in (await conf_of(call)).get("slurmctldparameters", "").lower()


async def _accounting(call: DoctorCall) -> Finding:
    conf = await conf_of(call)
    if not conf.get("accountingstoragetype", "").endswith("/slurmdbd"):
        return ok("none that is known here, so nobody tells who has cancelled a job")
    if (sacct := call.slurm_tool("sacct")) is None:
        text = "sacct is not installed, so nobody tells who has cancelled a job"
        return warn(text, "install Slurm's client commands (apt install slurm-client)")
    if (await ask_munge(call)).status == "fail":
        return _WITHOUT_MUNGE
    done = await run_tool([sacct, "-n", "-X", "-S", "now", "-o", "JobID"], call.slurm_setting)
    return judge_accounting(done.status, done.said[-1], conf.get("accountingstoreflags", ""))


def judge_accounting(status: int, said: str, flags: str) -> Finding:
    """Judge the answer of sacct, and AccountingStoreFlags of slurm.conf."""
    if status:
        remedy = "start slurmdbd, or make its host and port reachable (AccountingStorageHost)"
        return warn(f"{said}; until then nobody tells who has cancelled a job", remedy)
    if "job_comment" in flags.lower().split(","):
        return ok("slurmdbd answers; sacct has the names and images of containers")
    return ok("slurmdbd answers; sacct has no images: AccountingStoreFlags lacks job_comment")


async def _oci_conf(call: DoctorCall) -> Finding:
    if await in_thread(by_own_shim, call, abandon=True):
        return ok("none is used: a shim calls the runtime on the nodes")
    version = None
    with contextlib.suppress(ScrunError):  # the check of versions reports this
        version = await slurm_version(call)
    mounts_spool = version is not None and features(version).mounts_spool
    return await in_thread(_read_oci_conf, call, mounts_spool, abandon=True)


def by_own_shim(call: DoctorCall) -> bool:
    """Return whether a shim would call crun or runc (`[slurm] launch`). Blocks."""
    return call.settings.slurm.launch != "container" and not os.path.exists(call.oci_conf)


def _read_oci_conf(call: DoctorCall, mounts_spool: bool) -> Finding:
    path, by_slurm = call.oci_conf, call.settings.slurm.launch == "container"
    try:
        os.stat(path)
    except OSError as error:
        remedy = "write it as described in oci.conf(5), on this machine and on the nodes"
        return fail(f"{path}: {error.strerror}", remedy)
    conf = read_oci_conf(path)
    missing = call.missing(conf)
    return judge_oci_conf(path, conf, missing, mounts_spool=mounts_spool, by_slurm=by_slurm)


async def _script(call: DoctorCall) -> Finding:
    """Find and load scrun.lua, as `create` does."""
    engine, stager = call.engine.name if call.engine else "local", call.settings.stager
    path = await in_thread(find_script, call.settings, engine, abandon=True)
    if path is None:
        builtin = stager in ("auto", "builtin")
        return ok("none: the built-in staging" if builtin else f"not used: the stager is {stager}")
    with contextlib.closing(Journal("/dev/null", Log(), "doctor")) as journal:
        async with loaded(
            path, call.settings.lua, call.child_env, call.directory, journal,
            await in_thread(site_of, call.settings),
        ):  # fmt: skip
            return ok(f"{path}: loaded by Lua {call.settings.lua.version}")


_OTHER_CONF = "name another one by SLURM_CONF, -f, or `conf` in the section [slurm]"
_OCI_CONF = "correct it, here and on the nodes"
_LUA = "`scrun lua check FILE` tells more"
CHECKS = (
    Check(("engine",), one(_engine)),
    Check(("slurm.conf",), one(_slurm_conf), spared=without_slurm, remedy=_OTHER_CONF),
    Check(("munge",), one(ask_munge), spared=without_slurm),
    Check(("slurmctld", "nodes"), _controller, spared=without_slurm),
    Check(("accounting",), one(_accounting), spared=without_slurm),
    Check(("oci.conf",), one(_oci_conf), spared=without_slurm, remedy=_OCI_CONF),
    Check(("scrun.lua",), one(_script), deadline=30, remedy=_LUA),
)
