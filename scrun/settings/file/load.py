"""The settings of scrun, from `scrun.toml`, the environment and the command line.

The files are `/etc/scrun/scrun.toml` and `.config/scrun/scrun.toml` in the home of the real user,
which takes precedence key by key; or only the file that `--config-file` or SCRUN_CONFIG names. The
variables of `OF_SETTINGS` (SCRUN_ROOT, SCRUN_DEBUG, …) override the files, and the command line
overrides those. Engines do not pass the environment on (`delete` of podman gets only
XDG_RUNTIME_DIR), so settings for every command belong in a file.

A wrong key, type or value is an error that names the file and the key. The keys are
documented on the classes `Settings`, `Log`, `Slurm`, `Local`, `RuntimeSettings`, `Staging`,
`Images`, `Lua` and `Spank`.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec

from scrun.core.errors import SettingsError, hint, why
from scrun.core.typed import convert
from scrun.oci.config import explain
from scrun.settings.file import sources
from scrun.settings.file.sources import identities, remember
from scrun.settings.slurm import requests

Level = Literal[
    "quiet", "fatal", "error", "info", "verbose", "debug", "debug2", "debug3", "debug4", "debug5"
]
LEVELS: tuple[Level, ...] = get_args(Level)
"""Slurm's level names, in the order of their numbers (srun(1), SLURM_DEBUG)."""

_NO_LEVEL = re.compile(r"(\blog\.(?:\w+_)?level:) invalid enum value '.*'")

Path = Annotated[str, msgspec.Meta(pattern="^/")]
Mebibytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]

_DOTS = 100  # in a line; tomllib takes n * n steps for a key of n parts

PLUGIN = "^[a-z][a-z0-9_-]{0,31}$"
Plugin = Annotated[str, msgspec.Meta(pattern=PLUGIN)]

AUDIT = "^(/|syslog$|journald$)"
_OF_THE_SITE = ("audit", "audit_required")

JOB_NAME = "^([^%]|%[cip%])+$"
JobName = Annotated[str, msgspec.Meta(pattern=JOB_NAME)]

POOL_NAME = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"

Reason = Annotated[str, msgspec.Meta(min_length=1)]

GIVE_UP = (
    "PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints",
    "MaxMemPerLimit", "DependencyNeverSatisfied", "AccountNotAllowed", "Job's account not *",
    "InvalidAccount", "QOSNotAllowed", "Job's QOS not *", "InvalidQOS", "QOSMin*", "QOS*PerJob*",
    "QOS*PerNode*", "Assoc*PerJob*", "Assoc*PerNode*",
)  # fmt: skip
"""Reasons that no waiting removes: the job's own size or kind, and its account. For measurements,
and why closed partitions and drained nodes are not among them: docs/decisions/give-up.md."""

OF_SETTINGS = {
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
"""Variables that override settings."""


class Log(msgspec.Struct, frozen=True):
    """`[log]`: scrun's own messages; never the container's output.

    Attributes:
        level: How much is logged: one of Slurm's level names, `quiet` to `debug5`.
        format: `text`, or `json` for the lines that runc writes and podman reads.
        file: A second log file, besides the log in the container's record.
        file_level: How much is logged there. Default: as `level`.
        stderr_level: How much `create` writes to standard error while it works, besides its final
            error. From `start` on, standard error belongs to the container.
        syslog_level: How much goes to syslog.
        syslog: The socket of the syslog daemon.
        limit: The most MiB of the log in a container's record; the oldest lines are dropped.
        output_limit: The most MiB of output that `run --detach` captures of a container; the
            oldest output is dropped.
        usage: Whether `run` says in the end, on standard error, what its container has used.
        audit: Where a line for each create, start, exec and end of a container goes: a file,
            `syslog` or `journald`.
        audit_required: Whether a container, or a program of `exec`, is refused if its line cannot
            be written.
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
    usage: bool = False
    audit: Annotated[str, msgspec.Meta(pattern=AUDIT)] | None = None
    audit_required: bool = False


class Slurm(msgspec.Struct, frozen=True):
    """`[slurm]`: how to use the cluster.

    Attributes:
        conf: The slurm.conf to use; SLURM_CONF and `-f` override it. Default: the one in Slurm's
            usual places.
        bin: The directory of salloc, srun and scancel. Default: PATH is searched.
        release_timeout: Seconds to wait until Slurm has released a job; then scrun goes on. (A job
            may be pending for ever.)
        give_up: Reasons of squeue(1) for which a pending job can never start: a container whose
            job has one is refused. `*` stands for anything. With `[]` it waits for ever.
        launch: What makes containers on the nodes: `container`, Slurm itself, by the commands of
            the site's oci.conf; `shim`, a program of scrun in the job's step, which calls these
            commands, or crun or runc where there is no oci.conf; `auto`, a shim if the node has
            what that needs, else Slurm.
        linger: Seconds that a job waits for the next container that requests the same, once its
            own has ended. 0: it is released at once.
        pool: The pool in which containers run that name none, if it is there and can take them;
            else they have jobs of their own. `auto` is one that starts by itself.
        pool_max: The most nodes of the pool `auto`.
        pool_idle: Seconds after which it lets a node go that no container needs.
        pool_node: `[slurm.pool_node]`: requests for each of its nodes, by the names of
            `[slurm.defaults]`, which count less.
        seal_streams: Whether containers' input and output are authenticated on their way between
            the submit host and a shim, as all else there always is.
        network: "auto": a container for which an engine has made a network gets one of its own on
            its node, too, where slirp4netns or pasta can connect it; "node": it has the node's.
        engine_flags: Whether the engine's limits and devices (`--cpus`, `--memory`, GPUs) are
            requests for the job.
        job_name: The names of jobs that nothing else names: `%c` stands for the container's name,
            `%i` for its image's, `%p` for its pod's, `%%` for a percent sign.
        allow: Requests that annotations and variables of a container may make besides those for
            resources, by the names of `[slurm.defaults]`: `["account", "qos"]`. An image can set
            these annotations and variables, so it could decide who pays.
        defaults: `[slurm.defaults]`: requests for every job, by the names of the SCRUN_*
            variables in lower case, without SCRUN_: `partition = "long"`, `job_num_nodes = 2`,
            `exclusive = true`.
    """

    conf: Path | None = None
    bin: Path | None = None
    release_timeout: Seconds = 30
    give_up: tuple[Reason, ...] = GIVE_UP
    launch: Literal["auto", "container", "shim"] = "auto"
    linger: Seconds = 0
    pool: Annotated[str, msgspec.Meta(pattern=POOL_NAME)] | None = None
    pool_max: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 4
    pool_idle: Seconds = 60
    pool_node: dict[str, str] = {}
    seal_streams: bool = True
    network: Literal["auto", "node"] = "auto"
    engine_flags: bool = True
    job_name: JobName = "%c"
    allow: tuple[str, ...] = ()
    defaults: dict[str, str] = {}


class Local(msgspec.Struct, frozen=True):
    """`[local]`: the embedded engine, for this machine without Slurm.

    Attributes:
        runtime: The OCI runtime to call, by name or path. Default: scrun looks for one.
        oci_conf: An oci.conf(5) whose commands are used instead.
    """

    runtime: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    oci_conf: Path | None = None


Pattern = Annotated[str, msgspec.Meta(min_length=1)]


class RuntimeSettings(msgspec.Struct, frozen=True):
    """`[runtime]`: commands of the OCI runtime that oci.conf(5) lacks.

    They are patterns as there (`%j` job, `%s` step, `%t` task, `%n` node, `%u` user, `%U` uid),
    run by a shell on the container's node.

    Attributes:
        exec: Runs one more program in a container; the JSON file `%f` describes it like the spec's
            `process`. Default: made from RunTimeQuery, RunTimeKill or RunTimeDelete, for runtimes
            with the command line of runc.
        pause: Suspends the container's processes. Default: SIGSTOP to all of them.
        resume: Resumes them; required with `pause`. Default: SIGCONT.
    """

    exec: Pattern | None = None
    pause: Pattern | None = None
    resume: Pattern | None = None


class Staging(msgspec.Struct, frozen=True):
    """`[staging]`: how bundles are staged to the nodes without a scrun.lua.

    Attributes:
        scratch: The directory for staged bundles, on a file system that the nodes share; `%u`
            stands for the user's name, `%U` for the uid, `%%` for a percent sign. Default: the
            container's record directory.
        host_only: Directories that exist only on the submit host, besides those where engines
            keep files for one container; mounts with a source below one of them are staged.
        copy_size: The most MiB that are copied of one root file system or mount because the nodes
            do not see it; what has more is refused. 0: no limit.
        timeout: Seconds that staging in or out may take.
        id_map: The users in the containers of an ordinary user: `single`: only the own one;
            `full`: also those that subuid(5) lends; `auto`: `full` if the nodes can map them.
        overlay: Where the nodes do not see a root file system because it is an overlay of the
            engine's: `mount`: they mount its layers, or copies of those that they do not see, kept
            in the store of images (`[images]`); `copy`: each container gets a copy of its own.
        sockets: The API's socket of podman or docker, where a container in a job mounts it: `own`:
            it leads there, if it is the user's own; `none`: it is not mounted.
        live_files: Who sees the files of a container in a job as it has them, by FUSE: `auto`:
            `podman cp` and all commands of docker's, where /dev/fuse permits it; `storage`: also
            what reads podman's storage, such as `podman export` and `commit`; `off`: nobody.
    """

    scratch: Path | None = None
    host_only: tuple[Path, ...] = ()
    copy_size: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 16384
    timeout: Seconds = 3600
    id_map: Literal["auto", "single", "full"] = "auto"
    overlay: Literal["mount", "copy"] = "mount"
    sockets: Literal["own", "none"] = "own"
    live_files: Literal["auto", "storage", "off"] = "auto"


class ImageSettings(msgspec.Struct, frozen=True):
    """`[images]`: the store of images: those of `scrun run IMAGE`, and of engines' layers.

    Attributes:
        store: The directory for them, on a file system that the nodes share, with patterns as in
            `scratch`. Default: `images-UID` in the directory of `[staging] scratch`, else
            `.cache/scrun/images` in the user's home.
        size: The most MiB of the store. If it has more, what was not used for the longest time is
            removed, until four fifths of them are left; never what a container uses. 0: no limit.
        also: Further stores, which are only read: a site's, say. Each belongs to root or the user.
        fresh: Seconds for which a tag names what it named when it was last looked up.
        node_size: The most MiB of images on a node's own disk, in TMPDIR or /tmp: where nodes do
            not see the store, they are sent there. 0: no limit.
        unpacked_size: The most MiB that one image unpacks to, holes of files included. 0: no
            limit.
    """

    store: Path | None = None
    size: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 51200
    also: tuple[Path, ...] = ()
    fresh: Seconds = 3600
    node_size: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 20480
    unpacked_size: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 51200


class Lua(msgspec.Struct, frozen=True):
    """`[lua]`: scrun.lua, a site's script that stages bundles.

    Attributes:
        script: The script; `none` for no script. Default: the scrun.lua beside the slurm.conf in
            use, or else /etc/slurm/scrun.lua, if it exists and the container runs in Slurm.
        version: The version of Lua.
        output_limit: The most MiB of output of a command of the script.
        memory: The most MiB of the script's own data.
        cpu_limit: The most seconds of CPU time of the script, without its commands.
    """

    script: Annotated[str, msgspec.Meta(pattern="^(/|none$)")] | None = None
    version: Literal["5.1", "5.2", "5.3", "5.4", "5.5"] = "5.4"
    output_limit: Mebibytes = 64
    memory: Mebibytes = 1024
    cpu_limit: Annotated[int, msgspec.Meta(ge=1)] = 60


class Spank(msgspec.Struct, frozen=True):
    """`[spank]`: a site's scripts of spank-lua(8), which run at each phase of a job.

    Attributes:
        plugstack: The plugstack.conf(5) that names them; `none` for no scripts. Default: the file
            of PlugStackConfig in the slurm.conf in use, or the plugstack.conf beside that.
    """

    plugstack: Annotated[str, msgspec.Meta(pattern="^(/|none$)")] | None = None


class Settings(msgspec.Struct, frozen=True):
    """The keys of scrun.toml outside tables.

    Attributes:
        engine: Where containers run: `slurm`, `local`, the name of another installed engine, or
            `auto`: Slurm if a slurm.conf and salloc are found, else this machine.
        stager: How bundles are staged: `lua`, `builtin`, `none`, the name of another installed
            stager, or `auto`: `lua` if there is a scrun.lua, else `builtin`.
        root: The directory of records and sockets, as `--root`. `/run/scrun` for root,
            `$XDG_RUNTIME_DIR/scrun` for others.
        group: Which containers share a supervisor process: all of a `user`, those of a `pod`,
            or none (`container`).
        create_timeout: Seconds that `create` and `run --detach` wait for a pending job and for
            staging; then they return, and the container goes on waiting.
        idle_timeout: Seconds after which a supervisor without containers exits.
        stop_timeout: Seconds in which a supervisor ends its containers: all when it is told to
            stop, after SIGTERM those that no successor can take over. It leaves the rest to the
            next command. Keep it below the 90 s after which systemd kills it.
        restore_timeout: Seconds that a container whose supervisor has died waits for another one;
            then it ends, and its job is released.
        log: See `Log`.
        slurm: See `Slurm`.
        local: See `Local`.
        runtime: See `RuntimeSettings`.
        staging: See `Staging`.
        images: See `Images`.
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
    restore_timeout: Seconds = 600
    log: Log = Log()
    slurm: Slurm = Slurm()
    local: Local = Local()
    runtime: RuntimeSettings = RuntimeSettings()
    staging: Staging = Staging()
    images: ImageSettings = ImageSettings()
    lua: Lua = Lua()
    plugins: dict[str, dict[str, Any]] = {}
    spank: Spank = Spank()


def load(env: Mapping[str, str], config_file: str | None = None) -> Settings:
    """Read the settings files, and apply the environment."""
    return merge(_of_files(env, config_file), env=env)


def _of_files(env: Mapping[str, str], config_file: str | None) -> Settings:
    merged: dict[str, object] = {}
    for path, kind in sources.files(env, config_file):
        if (content := _read(path, kind)) is not None:
            table = parse(content, path)
            _convert(table, path)
            if kind != "system" and (own := _of_the_site(table)):
                key = f"log.{next(iter(own))}"
                raise SettingsError(f"{path}: {key}: only {sources.SYSTEM_FILE} may have it")
            merged = _overlay(merged, table)
        if kind == "named":  # takes the place of all others, but not there
            site = sources.SYSTEM_FILE
            content = _read(site, "system")
            merged = _overlay(merged, {"log": _of_the_site(_toml(content or b"", site))})
    return _convert(merged, "settings")


def _of_the_site(table: Mapping[str, Any]) -> dict[str, object]:
    """Return the keys of `[log]` that count in the system's file only."""
    log = table.get("log")
    return {key: log[key] for key in _OF_THE_SITE if key in log} if isinstance(log, dict) else {}


def _read(path: str, kind: str) -> bytes | None:
    try:
        return sources.read(path, kind)
    except OSError as error:
        raise SettingsError(f"{path}: {why(error)}") from error


def load_and_remember(env: Mapping[str, str], config_file: str | None) -> dict[str, str]:
    """Find `root` and `group`, and leave them for later commands.

    Returns those that the files set: SCRUN_ROOT, which overrides `root`, is not among them.
    """
    try:
        before = identities(env, config_file)
    except OSError:
        before = []
    settings = _of_files(env, config_file)
    merge(settings, env=env)  # a variable may be invalid
    found = {"group": settings.group, **({"root": settings.root} if settings.root else {})}
    if before:
        remember(env, config_file, before, found)
    return found


def parse(content: bytes, name: str) -> dict[str, object]:
    """Parse one settings file; `name` is for the errors."""
    table = _toml(content, name)
    _check_keys(table, Settings, name)
    for key, complaint in _impossible(table, ""):
        raise SettingsError(f"{name}: {key}: {complaint}")
    slurm = table.get("slurm")
    for key in ("defaults", "pool_node"):
        if isinstance(slurm, dict) and isinstance(slurm.get(key), dict):
            slurm[key] = _defaults(slurm[key], name, key)
    if isinstance(slurm, dict) and isinstance(slurm.get("allow"), list):
        slurm["allow"] = _allowed(slurm["allow"], name)
    return table


def _toml(content: bytes, name: str) -> dict[str, object]:
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.count(b".") > _DOTS:
            raise SettingsError(f"{name}: line {number} has more than {_DOTS} dots")
    import tomllib  # takes 1.6 ms of a supervisor's start, and few have a file

    try:
        return tomllib.loads(content.decode())
    except RecursionError as error:
        raise SettingsError(f"{name}: not TOML: nested too deeply") from error
    except ValueError as error:  # not UTF-8, not TOML, a huge integer
        raise SettingsError(f"{name}: not TOML: {error}") from error


def merge(
    settings: Settings, *, options: Mapping[str, str] | None = None, env: Mapping[str, str]
) -> Settings:
    """Override settings by the environment, and those by the command line.

    `options` are values of the command line, by setting: `engine`, `root`, `slurm.conf` (`-f`),
    `log.level` (`--debug`, `-v`), `log.format`, …. Empty variables are ignored.
    """
    for variable, setting in OF_SETTINGS.items():
        if env.get(variable):
            settings = _replace(settings, setting, env[variable], variable)
    for setting, value in (options or {}).items():
        settings = _replace(settings, setting, value, setting)
    return settings


def level(text: str) -> str:
    """Return the name of a level given by name, in any case, or number: `6` is `debug2`."""
    numbers = {str(number): name for number, name in enumerate(LEVELS)}
    return numbers.get(text, text.lower())


def _convert(table: Mapping[str, object], name: str) -> Settings:
    try:
        return convert(table, Settings)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{name}: {_explain(error)}") from error


def _explain(error: msgspec.ValidationError) -> str:
    reason = explain(error).replace("string matching regex '^/'", "an absolute path")
    reason = reason.replace("string matching regex '^(/|none$)'", "an absolute path, or none")
    reason = reason.replace(f"string matching regex '{PLUGIN}'", "the name of a plugin")
    reason = reason.replace(
        f"string matching regex '{AUDIT}'", "an absolute path, syslog or journald"
    )
    reason = reason.replace(f"string matching regex '{JOB_NAME}'", "text with %c, %i, %p or %%")
    return _NO_LEVEL.sub(rf"\1 is not one of {', '.join(LEVELS)}", reason)


def _replace(settings: Settings, setting: str, value: str, source: str) -> Settings:
    """Set one setting, whose name has dots, from text."""
    is_level = setting.startswith("log.") and setting.endswith("level")
    layer: object = level(value) if is_level else value
    for part in reversed(setting.split(".")):
        layer = {part: layer}
    assert isinstance(layer, dict)
    _check_keys(layer, Settings, source)
    table = _overlay(msgspec.to_builtins(settings), layer)
    try:
        return convert(table, Settings, strict=False)
    except msgspec.ValidationError as error:
        reason = _explain(error).removeprefix(f"{setting}: ").removeprefix(f"{setting}:").strip()
        raise SettingsError(f"{source}: {value}: {reason}") from error
    except UnicodeEncodeError as error:
        raise SettingsError(f"{source}: {value!r}: is not UTF-8") from error


def _overlay(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping)
        result[key] = _overlay(under, value) if both else value  # type: ignore[arg-type]
    return result


def _check_keys(
    table: Mapping[str, object], kind: type[msgspec.Struct], name: str, prefix: str = ""
) -> None:
    """Refuse unknown keys, with a hint at a similar one; in errors they have a prefix."""
    fields = _fields(kind)
    for key, value in table.items():
        if key not in fields:
            raise SettingsError(f"{name}: {prefix}{key}: unknown key{hint(key, fields)}")
        inner = fields[key]
        is_table = isinstance(inner, type) and issubclass(inner, msgspec.Struct)
        if is_table and isinstance(value, dict):
            _check_keys(value, inner, name, f"{prefix}{key}.")


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


def _impossible(value: object, key: str) -> Iterator[tuple[str, str]]:
    """Yield values that are valid TOML but invalid for every setting."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _impossible(inner, f"{key}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _impossible(inner, f"{key}[{number}]")
    elif isinstance(value, str) and "\0" in value:
        yield key, "contains a NUL character"
    elif isinstance(value, float) and value != value:
        yield key, "is not a number"
    elif isinstance(value, int) and value.bit_length() > 63:  # TOML's limit
        yield key, "is too large"


def _allowed(names: list[object], name: str) -> list[object]:
    """Convert the names in `[slurm] allow` to those of variables."""
    for key in names:
        if isinstance(key, str) and key not in requests.KEYS:
            raise SettingsError(
                f"{name}: slurm.allow: {key}: unknown request{hint(key, requests.KEYS)}"
            )
    return [f"SCRUN_{key.upper()}" if isinstance(key, str) else key for key in names]


def _defaults(table: Mapping[str, object], name: str, of: str) -> dict[str, object]:
    """Convert the keys of a table of requests to names of variables, and the values to text."""
    result: dict[str, object] = {}
    for key, value in table.items():
        if key not in requests.KEYS:
            raise SettingsError(f"{name}: slurm.{of}.{key}: unknown key{hint(key, requests.KEYS)}")
        if isinstance(value, bool):
            value = "yes" if value else "no"
        elif isinstance(value, int):
            value = str(value)
        elif not isinstance(value, str):
            raise SettingsError(f"{name}: slurm.{of}.{key}: expected string, int or boolean")
        result["SCRUN_" + key.upper()] = value
    return result
