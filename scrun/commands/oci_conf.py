"""scrun oci-conf: check an oci.conf(5), or show its commands filled in.

`check FILE` reads it as slurmd and the embedded engine do, and warns of probable mistakes. `render
FILE` fills its patterns in and prints the shell commands, to run them by hand outside Slurm as in
Slurm's containers guide. It runs nothing, and asks no cluster.
"""

import os
import shutil

from scrun.cli.parse import Parsed
from scrun.core.errors import BundleError, UsageError
from scrun.core.output import say
from scrun.core.users import user_name
from scrun.oci.config import read_config
from scrun.settings.oci_conf.commands import NO_PID, Task, program_of
from scrun.settings.oci_conf.parse import OciConf, parse_oci_conf
from scrun.settings.slurm_conf import read_conf

_OPTIONS = ("bundle", "chdir", "job", "node", "pid", "spool", "step", "task", "uid", "user")
_SPOOL = "/var/spool/slurmd"
# the keys of 22.05; all others are new in 23.02
_OLD = (
    "container_path", "create_env_file", "run_time_create", "run_time_delete", "run_time_kill",
    "run_time_query", "run_time_run", "run_time_start", "remarks",
)  # fmt: skip
_NEW_LETTERS = {"%U": "23.02", "%m": "23.02", "%p": "23.02", "%Z": "26.05"}


def run(parsed: Parsed) -> int:
    action, path, *arguments = parsed.operands
    if action not in ("check", "render"):
        raise UsageError(
            f"unknown action {action!r}: use check or render: see 'scrun oci-conf --help'"
        )
    if action == "check" and (arguments or not parsed.options.keys().isdisjoint(_OPTIONS)):
        raise UsageError("oci-conf check takes only a file: it fills nothing in")
    conf = parse_oci_conf(read_conf(path), path)
    lines = _judged(conf, path) if action == "check" else _rendered(conf, parsed, arguments)
    say("".join(f"{line}\n" for line in lines).encode(errors="surrogateescape"))
    return 0


def _judged(conf: OciConf, path: str) -> list[str]:
    """Return the lines of `check`: that the file is valid, and warnings."""
    how = "RunTimeRun" if conf.mode == "run" else "RunTimeCreate, RunTimeStart and RunTimeQuery"
    lines = [f"{path}: ok, containers run by {how}", *conf.remarks]
    programs = {program_of(pattern) for pattern in conf.commands.values()}
    lines += [
        f"{path}: {program} is not on this machine"
        for program in sorted(filter(None, programs))
        if shutil.which(program) is None
    ]
    if conf.ignore_file_config_json:
        lines.append(f"{path}: IgnoreFileConfigJson: no OCI runtime, so no exec, pause or ps")
    lines += [
        f"{path}: Slurm {version} or newer is needed: {what}" for version, what in _newer(conf)
    ]
    return lines


def _newer(conf: OciConf) -> list[tuple[str, str]]:
    """Return the versions of Slurm that it needs, each with the keys and letters that need it."""
    usual = OciConf()
    found: dict[str, list[str]] = {}
    for field in OciConf.__struct_fields__:
        value = getattr(conf, field)
        if field not in _OLD and value != getattr(usual, field):
            found.setdefault("23.02", []).append(_spelled(field))
    text = " ".join(
        [*conf.commands.values(), conf.container_path or "", conf.mount_spool_dir or ""]
    ).replace("%%", "")
    for letter, version in _NEW_LETTERS.items():
        if letter in text:
            found.setdefault(version, []).append(letter)
    return [(version, ", ".join(what)) for version, what in sorted(found.items())]


def _spelled(field: str) -> str:
    return "StdIODebug" if field == "std_io_debug" else field.title().replace("_", "")


def _rendered(conf: OciConf, parsed: Parsed, arguments: list[str]) -> list[str]:
    """Fill all commands in; return each after its name, which is a comment for the shell."""
    task = _task(conf, parsed, arguments)
    lines = []
    for key, pattern in conf.commands.items():
        lines += [f"# {key}", task.fill(pattern, conf)]
    return lines


def _task(conf: OciConf, parsed: Parsed, arguments: list[str]) -> Task:
    """Return the task that the command line describes; the defaults are those of this machine."""
    bundle = os.path.abspath(parsed.text("bundle") or ".")
    rootfs = bundle
    if not conf.ignore_file_config_json:
        try:
            _, config = read_config(os.path.join(bundle, "config.json"))
            rootfs = os.path.join(bundle, config.root.path)
            arguments = arguments or list(config.process.args)
        except BundleError:
            if parsed.text("bundle") is not None:
                raise
    uid = _number(parsed, "uid", os.getuid())
    return Task(
        job=str(_number(parsed, "job", 1)),
        step=str(_number(parsed, "step", 0)),
        task=str(_number(parsed, "task", 0)),
        node=parsed.text("node") or os.uname().nodename,
        user=parsed.text("user") or user_name(uid),
        uid=uid,
        spool=parsed.text("spool") or _SPOOL,
        directory=os.path.abspath(parsed.text("chdir") or "."),
        bundle=bundle,
        rootfs=rootfs,
        pid=_number(parsed, "pid", NO_PID),
        arguments=tuple(arguments) or None,
    )


def _number(parsed: Parsed, option: str, otherwise: int) -> int:
    text = parsed.text(option)
    if text is None:
        return otherwise
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"option --{option} cannot be {text!r}, only a number")
    return int(text)
