"""Find and parse oci.conf(5) of Slurm 22.05 to 26.05, which has the commands to run containers.

The embedded engine runs these commands; on a cluster slurmstepd does. For the use of each key see
docs/howto/oci-conf.md.
"""

import functools
import os
from typing import Literal

import msgspec

from scrun.core.errors import SettingsError, closest, shortened, why
from scrun.core.paths import Untrusted, read_trusted
from scrun.core.typed import convert
from scrun.settings.file.load import LEVELS, Level, Log, Settings, level
from scrun.settings.oci_conf.patterns import check_letters, extended
from scrun.settings.slurm_conf import find_slurm_conf, logical_lines, pairs, slurm_user


class OciConf(msgspec.Struct, frozen=True):
    """The keys of an oci.conf(5); remarks are of probable mistakes, with file and line."""

    container_path: str | None = None
    create_env_file: Literal["disabled", "null", "newline"] = "disabled"
    debug_flags: str | None = None
    disable_cleanup: bool = False
    disable_hooks: tuple[str, ...] = ()
    env_exclude: str | None = None
    file_debug: Level | None = None
    ignore_file_config_json: bool = False
    mount_spool_dir: str | None = None
    run_time_create: str | None = None
    run_time_delete: str | None = None
    run_time_env_exclude: str | None = None
    run_time_kill: str | None = None
    run_time_query: str | None = None
    run_time_run: str | None = None
    run_time_start: str | None = None
    srun_args: tuple[str, ...] = ()
    srun_path: str | None = None
    std_io_debug: Level | None = None
    syslog_debug: Level | None = None
    remarks: tuple[str, ...] = ()

    @property
    def mode(self) -> Literal["run", "create"]:
        """Whether one command runs a container, or several create, start and query it."""
        return "run" if self.run_time_run is not None else "create"

    @property
    def commands(self) -> dict[str, str]:
        """The commands that are set, by key, in the order of a container's life."""
        found = {key: getattr(self, field) for key, field in COMMANDS.items()}
        return {key: pattern for key, pattern in found.items() if pattern is not None}


COMMANDS = {
    f"RunTime{name.capitalize()}": f"run_time_{name}"
    for name in ("create", "start", "run", "query", "kill", "delete")
}
_SPELLED = {
    key.lower(): key
    for key in (
        *COMMANDS, "ContainerPath", "CreateEnvFile", "DebugFlags", "DisableCleanup",
        "DisableHooks", "EnvExclude", "FileDebug", "IgnoreFileConfigJson", "MountSpoolDir",
        "RunTimeEnvExclude", "SrunArgs", "SrunPath", "StdIODebug", "SyslogDebug",
    )
}  # fmt: skip
_FIELDS = {name.replace("_", ""): name for name in OciConf.__struct_fields__ if name != "remarks"}
_PATTERNS = (*COMMANDS.values(), "container_path", "mount_spool_dir")
_LEVELS = ("file_debug", "std_io_debug", "syslog_debug")
_EXPRESSIONS = ("env_exclude", "run_time_env_exclude")
_BOOLEANS = dict.fromkeys(("yes", "true", "up", "1", "y", "t", "u"), True) | dict.fromkeys(
    ("no", "false", "down", "0", "n", "f", "d"), False
)


def parse_oci_conf(text: str, name: str = "oci.conf") -> OciConf:
    """Parse an oci.conf; keys are case-insensitive, and the last of several counts.

    Raises:
        SettingsError: A line is not `Key=Value`, a key is unknown, a value is invalid, or the
            commands are not a complete set for either mode.
    """
    found: dict[str, object] = {}
    lines: dict[str, int] = {}
    remarks: list[str] = []
    arguments: list[str] = []
    for number, line in logical_lines(text):
        settings, rest = pairs(line)
        if rest:
            raise SettingsError(
                f"{name}:{number}: not understood (quotes missing?): {shortened(rest)}"
            )
        for key, value in settings:
            field = _field(key, f"{name}:{number}")
            if field == "srun_args":
                arguments.append(value)
                continue
            found[field] = _value(field, value, f"{name}:{number}: {key}")
            if before := lines.get(field):
                spelled = _SPELLED[key.lower()]
                remarks.append(
                    f"{name}:{number}: {spelled} is set twice: this counts, not line {before}"
                )
            lines[field] = number
    conf = convert({**found, "srun_args": arguments, "remarks": remarks}, OciConf)
    _check(conf, name)
    return conf


def _field(key: str, where: str) -> str:
    """Return the field of a key; slurmd does not start with an unknown one either."""
    field = _FIELDS.get(key.lower())
    if field is None:
        # Slurm's documentation of 21.08 names some OCIRunTime…, which no version reads
        close = closest(key.lower().removeprefix("oci"), _SPELLED)
        hint = f" (is it {_SPELLED[close]}?)" if close else ""
        raise SettingsError(f"{where}: {key}: unknown key{hint}")
    return field


def _value(field: str, value: str, where: str) -> object:
    word = value.lower()
    if field in ("disable_cleanup", "ignore_file_config_json"):
        if word not in _BOOLEANS:
            raise SettingsError(f"{where}={value}: yes or no expected")
        return _BOOLEANS[word]
    if field == "create_env_file":
        if word in _BOOLEANS:
            return "null" if _BOOLEANS[word] else "disabled"
        if word not in ("null", "newline", "disabled"):
            raise SettingsError(f"{where}={value}: null, newline or disabled expected")
        return word
    if field == "disable_hooks":
        return [hook for hook in value.split(",") if hook]
    if field in _LEVELS:
        if level(value) not in LEVELS:
            raise SettingsError(f"{where}={value}: one of {', '.join(LEVELS)} expected")
        return level(value)
    if field == "srun_path" and not value.startswith("/"):
        raise SettingsError(f"{where}={value}: an absolute path expected")
    try:
        if field in _PATTERNS:
            check_letters(value)
        elif field in _EXPRESSIONS:
            extended(value)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from None
    return value


def _check(conf: OciConf, name: str) -> None:
    """Enforce Slurm's rule (oci_config.c): exactly one complete set of commands."""
    if conf.run_time_run is not None and (conf.run_time_create or conf.run_time_start):
        raise SettingsError(f"{name}: RunTimeRun excludes RunTimeCreate and RunTimeStart")
    if conf.ignore_file_config_json:
        # Slurm checks no other command, and ends a step without RunTimeRun
        needed: tuple[str, ...] = ("RunTimeRun",)
    elif conf.mode == "run":
        needed = ("RunTimeRun", "RunTimeKill", "RunTimeDelete")
    else:
        needed = ("RunTimeCreate", "RunTimeStart", "RunTimeQuery", "RunTimeKill", "RunTimeDelete")
    for key in needed:
        if key not in conf.commands:
            raise SettingsError(f"{name}: {key} is missing")


def beside(slurm_conf: str | None) -> str:
    """Return the path where Slurm looks for oci.conf: beside slurm.conf."""
    return os.path.join(os.path.dirname(slurm_conf) if slurm_conf else "/etc/slurm", "oci.conf")


def version_of(path: str) -> tuple[int, int, int] | None:
    """Return what tells versions of an oci.conf apart; None if there is none. Blocks."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def site_conf(path: str, slurm_conf: str | None) -> OciConf | None:
    """Read and parse an oci.conf; see `site_content`."""
    content = site_content(path, slurm_conf)
    return None if content is None else parse_site(content, path)


def site_content(path: str, slurm_conf: str | None) -> bytes | None:
    """Read an oci.conf of root's or SlurmUser's; None if it cannot be read, as on submit hosts."""
    try:
        try:
            return read_trusted(path)
        except Untrusted:  # only now, because looking a name up may hang
            return read_trusted(path, slurm_user(slurm_conf))
    except Untrusted as error:
        raise SettingsError(f"{path}: {why(error)}") from error
    except (OSError, ValueError):
        return None


def parse_site(content: bytes, path: str) -> OciConf:
    """Parse what `site_content` has read."""
    return parse_oci_conf(content.decode(errors="surrogateescape"), path)


def with_site_levels(settings: Settings) -> Settings:
    """Use the levels of messages in the site's oci.conf as defaults.

    Slurm's own scrun lets StdIODebug, FileDebug and SyslogDebug override its command line, which
    nobody expects.
    """
    conf = None if settings.engine == "local" else find_slurm_conf(settings)
    by_slurm = settings.engine == "slurm" or conf is not None
    path = beside(conf) if by_slurm else settings.local.oci_conf or ""
    try:
        status = os.stat(path)
        levels = _levels(path, conf, status.st_mtime_ns, status.st_size)
    except (OSError, ValueError, SettingsError):  # reported when its commands are needed
        return settings
    log = settings.log
    usual = Log()
    found = {
        field: level
        for field, level in levels.items()
        if level is not None and getattr(log, field) == getattr(usual, field)
    }
    return msgspec.structs.replace(settings, log=msgspec.structs.replace(log, **found))


@functools.lru_cache(maxsize=8)
def _levels(path: str, slurm_conf: str | None, changed: int, size: int) -> dict[str, Level | None]:
    """Read the levels, once for each version of the file."""
    del changed, size
    conf = site_conf(path, slurm_conf) or OciConf()
    return {
        "file_level": conf.file_debug,
        "stderr_level": conf.std_io_debug,
        "syslog_level": conf.syslog_debug,
    }
