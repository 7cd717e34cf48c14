"""The request of a `create`, parsed by the supervisor, with what its caller misspelled."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from scrun.cli.parse import Parsed, parse, typed_settings
from scrun.core.errors import UsageError, closest
from scrun.core.paths import ENGINES_NETWORK, OUTSIDE
from scrun.core.place import place_of
from scrun.core.templates import VARIABLE
from scrun.settings.file.load import LEVELS, OF_SETTINGS, Log, Settings, load, merge
from scrun.settings.oci_conf.parse import with_site_levels
from scrun.settings.slurm.outputs import NAMES
from scrun.settings.slurm.requests import TABLE
from scrun.supervisor.children.processes import SYSTEM_PATH, ChildEnv
from scrun.supervisor.core.limits import processors_of, soft_limits
from scrun.supervisor.log.journal import Shown

_DIGITS_OF_FDS = 4
_KEY = re.compile("[0-9a-f]{32}")
_ENGINES_OF_JOBS = ("auto", "slurm")
_OF_CRUN = {"warning": "info"}
_LOUDER = ("info", "verbose", "debug", "debug2", "debug3", "debug4", "debug5")


class CreateRequest(msgspec.Struct, frozen=True):
    """A request for a container.

    Attributes:
        bundle: The bundle's directory, absolute.
        config_file: What to read instead of its config.json, absolute, or None.
        pid_file: The pid file, absolute, or None.
        settings_file: The file of `--config-file` or SCRUN_CONFIG, or "".
        shown: Which messages its `create` writes.
        console: The engine's socket for the container's terminal, absolute, or None.
        in_foreground: Whether it is a `run` without `--detach`: the container uses its terminal.
        keeps_output: Whether it is a `run --detach`: output for a terminal is captured.
        task: The task of Slurm's that the caller is in, `JOB.STEP.TASK`; "" for none.
        template: The key of the template to leave of it (`scrun.client.template`); "": none.
        in_step: Whether it is in a step of any kind, which Slurm signals and ends.
        is_kept: Whether it stays after a `run` (`--keep`).
        misspelled: The caller's variables that nobody reads, each with what was probably meant.
    """

    id: str
    bundle: str
    config_file: str | None
    directory: str
    pid_file: str | None
    child_env: ChildEnv
    settings: Settings
    shown: Shown
    console: str | None
    settings_file: str = ""
    in_foreground: bool = False
    keeps_output: bool = False
    task: str = ""
    template: str = ""
    in_step: bool = False
    is_kept: bool = False
    misspelled: tuple[tuple[str, str], ...] = ()

    @property
    def goes_with_run(self) -> bool:
        """Whether nobody but its `run` deletes it, which Slurm may end together with us."""
        return self.in_step and self.in_foreground and not self.is_kept

    @property
    def is_create(self) -> bool:
        """Whether an engine called `create`: its monitor waits for the container's process."""
        return not (self.in_foreground or self.keeps_output)


class CommandLine(msgspec.Struct, frozen=True):
    """A command line, and the caller's surroundings.

    Attributes:
        pid: The process with the caller's limits: the caller; for `exec`, its anchor.
    """

    parsed: Parsed
    pid: int
    directory: str
    child_env: ChildEnv


def read_command_line(fields: Sequence[bytes], *commands: str) -> CommandLine:
    """Parse a request with a command line (`scrun.protocol.wire`) of these, or UsageError."""
    try:
        pid, umask, directory, count = fields[:4]
        number = 4 + int(count)
        words = [os.fsdecode(word) for word in fields[4:number]]
        pairs = (os.fsdecode(entry).partition("=") for entry in fields[number:])
        environment = {name: value for name, _, value in pairs if name}
        environment.setdefault("PATH", SYSTEM_PATH)  # runc looks for newuidmap there
        caller = read_pid(pid)
        umask_of_caller = _within(int(umask, 8), 0, 0o777)
        child_env = ChildEnv(
            environment,
            umask_of_caller,
            limits=soft_limits(caller),
            processors=processors_of(caller),
        )
        parsed = parse(words)
        if parsed.command not in commands or not directory.startswith(b"/"):
            raise ValueError(parsed.command)
    except (ValueError, IndexError) as error:
        raise UsageError(
            "the request cannot be parsed: does it come from another scrun?"
        ) from error
    return CommandLine(parsed, caller, os.fsdecode(directory), child_env)


def read_pid(text: bytes) -> int:
    """Parse a process id; raises ValueError if it is not one."""
    return _within(int(text), 1, 1 << 22)  # the kernel's PID_MAX_LIMIT


def _within(number: int, least: int, most: int) -> int:
    if not least <= number <= most:
        raise ValueError(number)
    return number


def read_create_request(fields: Sequence[bytes], *commands: str) -> CreateRequest:
    """Parse a request for a container, by one of these commands. Reads the settings files.

    Raises UsageError if it is malformed, and SettingsError if the settings are wrong.
    """
    call = read_command_line(fields, *commands)
    parsed, here = call.parsed, call.directory
    environment = dict(call.child_env.environment)
    template = environment.pop(VARIABLE.decode(), "")
    config_file, pid_file = parsed.text("config"), parsed.text("pid-file")
    console = parsed.text("console-socket")
    place = place_of(call.pid, environment)
    settings = settings_of(parsed, environment, here)
    if place.task and settings.engine in _ENGINES_OF_JOBS and not parsed.text("engine"):
        # it is on its node already, and has what Slurm has given it there
        settings = msgspec.structs.replace(settings, engine="local")
    return CreateRequest(
        id=parsed.id or "",
        misspelled=tuple(misspelled(environment)),
        bundle=os.path.normpath(os.path.join(here, parsed.text("bundle") or ".")),
        config_file=os.path.join(here, config_file) if config_file else None,
        directory=here,
        pid_file=os.path.join(here, pid_file) if pid_file else None,
        child_env=msgspec.structs.replace(call.child_env, environment=environment),
        settings=settings,
        shown=_shown(parsed, environment, settings.log),
        console=os.path.join(here, console) if console else None,
        settings_file=_settings_file(parsed, environment, here),
        in_foreground=parsed.command == "run" and not parsed.count("detach"),
        keeps_output=parsed.command == "run" and bool(parsed.count("detach")),
        task=place.name if place.task else "",
        template=template if place.task and _KEY.fullmatch(template) else "",
        in_step=bool(place.step),
        is_kept=bool(parsed.count("keep")),
    )


def preserved_fds(parsed: Parsed) -> int:
    """Return the value of `--preserve-fds`; without one the option means nothing, as in scrun(1).

    Raises UsageError if it is not a number of descriptors.
    """
    text = parsed.text("preserve-fds")
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_OF_FDS):
        raise UsageError(f"--preserve-fds {text!r}: a number of descriptors expected")
    return int(text)


def own_create_request(argv: Sequence[str], command: str) -> CreateRequest:
    """Return the request that a `create` called like this process would send."""
    umask = os.umask(0o077)
    os.umask(umask)
    fields = [b"%d" % os.getpid(), b"%o" % umask, os.fsencode(os.getcwd()), b"%d" % len(argv)]
    fields += [os.fsencode(argument) for argument in argv]
    fields += [name + b"=" + value for name, value in os.environb.items()]
    return read_create_request(fields, command)


def _settings_file(parsed: Parsed, environment: Mapping[str, str], here: str) -> str:
    """Return the settings file that a call names, absolute; "" for the usual ones."""
    named = parsed.text("config-file") or environment.get("SCRUN_CONFIG")
    return os.path.join(here, named) if named else ""


def settings_of(parsed: Parsed, environment: Mapping[str, str], here: str) -> Settings:
    """Read the settings that apply to a command line, in its environment and directory."""
    config_file = parsed.text("config-file")
    settings = load(environment, os.path.join(here, config_file) if config_file else None)
    options = typed_settings(parsed, here)
    if typed := _typed_level(parsed):
        options["log.level"] = options["log.file_level"] = typed
    # scrun(1) of Slurm: it is for standard error (see `_shown`) and syslog as well
    if (everywhere := environment.get("SCRUN_DEBUG")) and not environment.get(
        "SCRUN_SYSLOG_DEBUG"
    ):
        options["log.syslog_level"] = everywhere
    if (log_format := parsed.text("log-format")) and not parsed.text("log"):
        options["log.format"] = log_format
    return with_site_levels(merge(settings, options=options, env=environment))


def _typed_level(parsed: Parsed) -> str | None:
    """Return the level that the command line requests."""
    if parsed.options.get("debug"):
        return "debug"
    if louder := parsed.count("verbose"):
        return _LOUDER[min(louder, len(_LOUDER) - 1)]
    log_level = parsed.text("log-level")
    return _OF_CRUN.get(log_level.lower(), log_level) if log_level else None


def _shown(parsed: Parsed, environment: Mapping[str, str], log: Log) -> Shown:
    """Return which messages `create` writes itself.

    Engines always give `--log`, and their `create` has the container's standard error. So the
    level of the command line applies to standard error only without `--log`, as in runc. `--log`
    gets more than the error only if this call requests it, not if the settings files do: podman
    expects one line.
    """
    typed = _typed_level(parsed)
    to_log = parsed.text("log") is not None
    wanted = typed or environment.get("SCRUN_DEBUG") or environment.get("SCRUN_FILE_DEBUG")
    stderr = log.stderr_level
    everywhere = environment.get("SCRUN_DEBUG") and not environment.get("SCRUN_STDERR_DEBUG")
    if (typed or everywhere) and not to_log:
        stderr = max(stderr, log.level, key=LEVELS.index)
    return Shown(
        stderr=stderr,
        log=(log.file_level or log.level) if to_log and wanted else "quiet",
        failure_in_file=bool(environment.get("SCRUN_LOG_FILE")),
        live=parsed.command == "run" and stderr == "quiet",
    )


_OURS = "SCRUN_"
_OTHERS = frozenset(("SCRUN_CONFIG", "SCRUN_WATCHDOG", OUTSIDE, ENGINES_NETWORK))
_FAMILIES = ("SCRUN_OPTION_", "SCRUN_ANNOTATION_")


def misspelled(names: Iterable[str]) -> list[tuple[str, str]]:
    """Find variables that nobody reads and that are much like one that scrun reads, or an option.

    Returns each with the one that was meant. Other names that begin so may be anybody's.
    """
    found = []
    read = {*TABLE, *OF_SETTINGS, *_OTHERS, *NAMES}
    for name in names:
        if name.startswith(_OURS) and not name.startswith(_FAMILIES) and name not in read:
            known = _meant()
            if meant := closest(name.removeprefix(_OURS), sorted(known)):
                found.append((name, known[meant]))
    return found


def _meant() -> dict[str, str]:
    """Return the variables by what may be written for them, without SCRUN_."""
    options = {
        request.option.removeprefix("--").upper().replace("-", "_"): request.variable
        for request in reversed([*TABLE.values()])
    }
    own = (name for name in (*TABLE, *OF_SETTINGS, *_OTHERS) if name.startswith(_OURS))
    return {**options, **{name.removeprefix(_OURS): name for name in own}}
