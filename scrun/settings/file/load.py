"""The settings of scrun: `scrun.toml`, with the environment and the command line above it.

Read are `/etc/scrun/scrun.toml` and then `.config/scrun/scrun.toml` in the home of the real
user, which counts more, key by key; or the one file that `--config-file` or SCRUN_CONFIG
names. Above the files stand the variables of `_ENVIRONMENT` (SCRUN_ROOT, SCRUN_DEBUG, …), above
those the command line. Engines do not pass the environment on (`delete` of podman gets
XDG_RUNTIME_DIR alone), so what has to hold for every command belongs into a file.

A wrong key, type or value is an error that names the file and the key. The keys are
documented on the classes `Settings`, `Log`, `Slurm`, `Local`, `RuntimeSettings`, `Staging`,
`Lua` and `Spank`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec

from scrun.core.errors import SettingsError
from scrun.oci.config import explain
from scrun.settings.file import quick
from scrun.settings.file.table import check_keys, read_table

Level = Literal[
    "quiet", "fatal", "error", "info", "verbose", "debug", "debug2", "debug3", "debug4", "debug5"
]
LEVELS: tuple[Level, ...] = get_args(Level)
"""Slurm's level names, in the order of their numbers (srun(1), SLURM_DEBUG)."""

Path = Annotated[str, msgspec.Meta(pattern="^/")]
Mebibytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]

PLUGIN = "^[a-z][a-z0-9_-]{0,31}$"
Plugin = Annotated[str, msgspec.Meta(pattern=PLUGIN)]

Reason = Annotated[str, msgspec.Meta(min_length=1)]

GIVE_UP = (
    "PartitionConfig",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "BadConstraints",
    "MaxMemPerLimit",
    "DependencyNeverSatisfied",
    "AccountNotAllowed",
    "Job's account not *",
    "InvalidAccount",
    "QOSNotAllowed",
    "Job's QOS not *",
    "InvalidQOS",
    "QOSMin*",
    "QOS*PerJob*",
    "QOS*PerNode*",
    "Assoc*PerJob*",
    "Assoc*PerNode*",
)
"""What no waiting cures: the job's own size or kind, and who pays. Measured, and why a closed
partition and drained nodes are not in it: docs/decisions/give-up.md."""

_ENVIRONMENT = {
    "SCRUN_ENGINE": "engine",
    "SCRUN_STAGER": "stager",
    "SCRUN_ROOT": "root",
    "SCRUN_DEBUG": "log.level",
    "SCRUN_STDERR_DEBUG": "log.stderr_level",
    "SCRUN_SYSLOG_DEBUG": "log.syslog_level",
    "SCRUN_FILE_DEBUG": "log.file_level",
    "SCRUN_LOG_FILE": "log.file",
    "SLURM_CONF": "slurm.conf",
}


class Log(msgspec.Struct, frozen=True):
    """`[log]`: scrun's own messages; never the container's output.

    Attributes:
        level: How much is written: one of Slurm's level names, `quiet` to `debug5`.
        format: `text`, or `json` for the lines that runc writes and podman reads.
        file: Where to, besides the log in the container's record.
        file_level: How much is written there; as `level` when not set.
        stderr_level: How much `create` says on standard error while it works, besides the error
            that it ends with. From `start` on that is the container's alone.
        syslog_level: How much goes to syslog.
        syslog: The socket of syslog's daemon.
        limit: MiB that the log in a container's record may take; the oldest goes first.
        output_limit: MiB that the output may take that scrun keeps of a container, for `run
            --detach`; the oldest goes first.
    """

    level: Level = "info"
    format: Literal["text", "json"] = "text"
    file: Path | None = None
    file_level: Level | None = None
    stderr_level: Level = "quiet"
    syslog_level: Level = "quiet"
    syslog: Path = "/dev/log"
    limit: Mebibytes = 4
    output_limit: Mebibytes = 16


class Slurm(msgspec.Struct, frozen=True):
    """`[slurm]`: how the cluster is reached.

    Attributes:
        conf: The slurm.conf to use; SLURM_CONF and `-f` count more. Without any, Slurm's usual
            places are tried.
        bin: The directory of salloc, srun and scancel; PATH without it.
        release_timeout: Seconds that Slurm may take to release a job before scrun goes on
            without its answer. (To be granted one, a job may wait for ever.)
        give_up: Reasons of squeue(1) for which a pending job can never start, so that the
            container is refused with them; `*` stands for anything. With `[]` it waits for ever.
        engine_flags: Whether the engine's limits and devices (`--cpus`, `--memory`, GPUs) are
            requests for the job.
        allow: Requests that annotations and variables of a container may make besides those for
            resources, by the names of `[slurm.defaults]`: `["account", "qos"]`. An image can have
            both, and with them they decide who pays.
        defaults: `[slurm.defaults]`: requests for every job, by the names of the SCRUN_*
            variables in lower case, without SCRUN_: `partition = "long"`, `job_num_nodes = 2`,
            `exclusive = true`.
    """

    conf: Path | None = None
    bin: Path | None = None
    release_timeout: Seconds = 30
    give_up: tuple[Reason, ...] = GIVE_UP
    engine_flags: bool = True
    allow: tuple[str, ...] = ()
    defaults: dict[str, str] = {}


class Local(msgspec.Struct, frozen=True):
    """`[local]`: the embedded engine, this machine without Slurm.

    Attributes:
        runtime: The OCI runtime to call, by name or path; found by itself when not set.
        oci_conf: An oci.conf(5) whose commands are used instead.
    """

    runtime: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    oci_conf: Path | None = None


Pattern = Annotated[str, msgspec.Meta(min_length=1)]


class RuntimeSettings(msgspec.Struct, frozen=True):
    """`[runtime]`: commands of the OCI runtime that oci.conf(5) has no place for.

    Patterns as there (`%j` job, `%s` step, `%t` task, `%n` node, `%u` user, `%U` uid), run by a
    shell on the container's node.

    Attributes:
        exec: Runs one more program in a container: the one that the JSON file `%f` describes, as
            the spec's `process`. When not set: made from RunTimeQuery, RunTimeKill or
            RunTimeDelete, for runtimes with the command line of runc.
        pause: Stops the container's processes. When not set: SIGSTOP to all of them.
        resume: Lets them go on; set if `pause` is. When not set: SIGCONT.
    """

    exec: Pattern | None = None
    pause: Pattern | None = None
    resume: Pattern | None = None


class Staging(msgspec.Struct, frozen=True):
    """`[staging]`: how a bundle is made ready for the nodes where no scrun.lua does it.

    Attributes:
        scratch: The directory for staged bundles, on a file system that the nodes share; `%u`
            stands for the user's name, `%U` for the uid, `%%` for a percent sign. The container's
            record directory when not set.
        host_only: Mounts whose source is under one of these paths exist only on the submit
            host, besides those where engines keep what they make for one container.
        timeout: Seconds that staging in or out may take.
        id_map: The users that the containers of an ordinary user have: `single` the own one,
            `full` all that subuid(5) lends besides, or `auto`: all if the nodes can map them.
    """

    scratch: Path | None = None
    host_only: tuple[Path, ...] = ()
    timeout: Seconds = 3600
    id_map: Literal["auto", "single", "full"] = "auto"


class Lua(msgspec.Struct, frozen=True):
    """`[lua]`: scrun.lua, the script that stages bundles where a site has one.

    Attributes:
        script: The script; `none` for no script. When not set: the scrun.lua beside the
            slurm.conf in use, or else /etc/slurm/scrun.lua, if it exists and the container goes
            to Slurm.
        version: The version of Lua.
        output_limit: MiB of output that a command of the script may print.
        memory: MiB that the script's own data may take.
        cpu_limit: Seconds of processor time that the script may take, its commands apart.
    """

    script: Annotated[str, msgspec.Meta(pattern="^(/|none$)")] | None = None
    version: Literal["5.1", "5.2", "5.3", "5.4", "5.5"] = "5.4"
    output_limit: Mebibytes = 64
    memory: Mebibytes = 1024
    cpu_limit: Annotated[int, msgspec.Meta(ge=1)] = 60


class Spank(msgspec.Struct, frozen=True):
    """`[spank]`: a site's scripts at each phase of a job, as spank-lua(8) has them.

    Attributes:
        plugstack: The plugstack.conf(5) that names them; `none` for no scripts. When not set: what
            PlugStackConfig of the slurm.conf in use says, or the plugstack.conf beside it.
    """

    plugstack: Annotated[str, msgspec.Meta(pattern="^(/|none$)")] | None = None


class Settings(msgspec.Struct, frozen=True):
    """The keys of scrun.toml that are in no table.

    Attributes:
        engine: Where containers run: `slurm`, `local`, another engine that is installed, or
            `auto`: Slurm where a slurm.conf and salloc are found, else this machine.
        stager: Who makes bundles ready: `lua`, `builtin`, `none`, another stager that is
            installed, or `auto`: the scrun.lua where there is one, else what is built in.
        root: The directory of records and sockets, as `--root`. `/run/scrun` for root,
            `$XDG_RUNTIME_DIR/scrun` for others.
        group: Which containers share a supervisor process: all of a `user`, those of a `pod`,
            or `container`: none.
        create_timeout: Seconds that `create` and `run --detach` wait for a job in the queue and
            for the staging, before they answer that the container is created and let it wait.
        idle_timeout: Seconds that a supervisor without containers stays.
        stop_timeout: Seconds that a supervisor which gets SIGTERM takes to end its containers.
            What is not undone by then it leaves to the next command. Less than the 90 s after
            which systemd kills it.
        log: See `Log`.
        slurm: See `Slurm`.
        local: See `Local`.
        runtime: See `RuntimeSettings`.
        staging: See `Staging`.
        lua: See `Lua`.
        plugins: `[plugins.NAME]`: the settings of other engines and stagers, by their names.
        spank: See `Spank`.
    """

    engine: Plugin = "auto"
    stager: Plugin = "auto"
    root: Path | None = None
    group: Literal["user", "pod", "container"] = "user"
    create_timeout: Seconds = 4
    idle_timeout: Seconds = 60
    stop_timeout: Seconds = 60
    log: Log = Log()
    slurm: Slurm = Slurm()
    local: Local = Local()
    runtime: RuntimeSettings = RuntimeSettings()
    staging: Staging = Staging()
    lua: Lua = Lua()
    plugins: dict[str, dict[str, Any]] = {}
    spank: Spank = Spank()


def load(env: Mapping[str, str], config_file: str | None = None) -> Settings:
    """Read the settings files and put the environment above them.

    Raises:
        SettingsError: A file cannot be read, must not be trusted, or says something wrong; or
            a variable does.
    """
    merged: dict[str, object] = {}
    for path, kind in quick.files(env, config_file):
        try:
            content = quick.read(path, kind)
        except OSError as error:
            raise SettingsError(f"{path}: {error.strerror}") from error
        if content is not None:
            table = parse(content, path)
            _convert(table, path)
            merged = _overlay(merged, table)
    return merge(_convert(merged, "settings"), env=env)


def parse(content: bytes, name: str) -> dict[str, object]:
    """Read the text of one settings file; `name` is for the errors.

    Raises:
        SettingsError: It is not TOML, or has a key or value that cannot be.
    """
    return read_table(content, name, Settings)


def merge(
    settings: Settings, *, options: Mapping[str, str] | None = None, env: Mapping[str, str]
) -> Settings:
    """Put the environment, and above it the command line, over the settings.

    Args:
        settings: What the files say.
        options: What the command line says, by setting: `engine`, `root`, `slurm.conf` (`-f`),
            `log.level` (`--debug`, `-v`), `log.format`, ….
        env: The caller's environment. An empty variable is none.

    Raises:
        SettingsError: A value is not possible; the message names the variable or setting.
    """
    for variable, setting in _ENVIRONMENT.items():
        if env.get(variable):
            settings = _replace(settings, setting, env[variable], variable)
    for setting, value in (options or {}).items():
        settings = _replace(settings, setting, value, setting)
    return settings


def level(text: str) -> str:
    """Read a level by name or number, in any case: `debug2` and `6` are the same."""
    numbers = {str(number): name for number, name in enumerate(LEVELS)}
    return numbers.get(text, text.lower())


def _convert(table: Mapping[str, object], name: str) -> Settings:
    try:
        return msgspec.convert(table, Settings)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{name}: {_explain(error)}") from error


def _explain(error: msgspec.ValidationError) -> str:
    reason = explain(error).replace("string matching regex '^/'", "an absolute path")
    reason = reason.replace("string matching regex '^(/|none$)'", "an absolute path, or none")
    return reason.replace(f"string matching regex '{PLUGIN}'", "the name of a plugin")


def _replace(settings: Settings, setting: str, value: str, source: str) -> Settings:
    """Set one setting, named with dots, from text."""
    is_level = setting.startswith("log.") and setting.endswith("level")
    layer: object = level(value) if is_level else value
    for part in reversed(setting.split(".")):
        layer = {part: layer}
    assert isinstance(layer, dict)
    check_keys(layer, Settings, source)
    table = _overlay(msgspec.to_builtins(settings), layer)
    try:
        return msgspec.convert(table, Settings, strict=False)
    except msgspec.ValidationError as error:
        reason = _explain(error).removeprefix(f"{setting}: ")
        raise SettingsError(f"{source}: {value}: {reason}") from error
    except UnicodeEncodeError as error:
        raise SettingsError(f"{source}: {value!r}: is not UTF-8") from error


def _overlay(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Merge two tables, key by key."""
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping)
        result[key] = _overlay(under, value) if both else value  # type: ignore[arg-type]
    return result
