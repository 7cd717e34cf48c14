"""oci.conf(5): how containers are run, of Slurm 22.05 to 26.05.

The embedded engine runs the commands that stand there; on a cluster slurmstepd does.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from scrun.errors import SettingsError
from scrun.settings.slurmconf import logical_lines, pairs

Values = Mapping[str, str | Sequence[str]]

# What sh(1) takes together; a substitution as a whole when nothing in it needs understanding.
_TOKEN = re.compile(
    r"""\\.|\$\{\w+\}|\$\([^()'"`\\{}$#<]*\)|`[^`'"\\$#<]*`|\$[({]|<<|.""", re.DOTALL
)


class OciConf(msgspec.Struct, frozen=True):
    """What an oci.conf says.

    Attributes:
        container_path: Where a step's bundle is made: a pattern.
        create_env_file: Whether, and how, the environment is written to a file.
        debug_flags: For slurmstepd.
        disable_cleanup: Whether the generated files stay.
        disable_hooks: The kinds of hooks that are taken out of config.json.
        env_exclude: An extended regular expression: variables that the container does not get.
        file_debug: For slurmstepd.
        ignore_file_config_json: Whether a config.json is not looked at.
        mount_spool_dir: Where in the container the step's directory is: a pattern.
        run_time_create: A command: a pattern, like the next ones.
        run_time_delete: See `run_time_create`.
        run_time_env_exclude: Variables that the commands do not get.
        run_time_kill: See `run_time_create`.
        run_time_query: See `run_time_create`.
        run_time_run: See `run_time_create`.
        run_time_start: See `run_time_create`.
        srun_args: For Slurm's own scrun.
        srun_path: For Slurm's own scrun.
        std_io_debug: For slurmstepd.
        syslog_debug: For slurmstepd.
        unknown: Keys that no version up to 26.05 has, with their values: to be reported.
    """

    container_path: str | None = None
    create_env_file: Literal["disabled", "null", "newline"] = "disabled"
    debug_flags: str | None = None
    disable_cleanup: bool = False
    disable_hooks: tuple[str, ...] = ()
    env_exclude: str | None = None
    file_debug: str | None = None
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
    std_io_debug: str | None = None
    syslog_debug: str | None = None
    unknown: dict[str, str] = {}

    @property
    def mode(self) -> Literal["run", "create"]:
        """Whether a container is run by one command, or created, started and asked after."""
        return "run" if self.run_time_run is not None else "create"

    @property
    def kill_pattern(self) -> str:
        """RunTimeKill without the signal at its end, if it names one; "" when there is none."""
        words = (self.run_time_kill or "").rstrip().rsplit(maxsplit=1)
        return " ".join(words[:1] if words and words[-1].upper() in _SIGNALS else words)


_SIGNALS = ("TERM", "KILL", "SIGTERM", "SIGKILL", "15", "9")
_FIELDS = {name.replace("_", ""): name for name in OciConf.__struct_fields__ if name != "unknown"}
_BOOLEANS = dict.fromkeys(("yes", "true", "up", "1", "y", "t", "u"), True) | dict.fromkeys(
    ("no", "false", "down", "0", "n", "f", "d"), False
)


def parse_oci_conf(text: str, name: str = "oci.conf") -> OciConf:
    """Read an oci.conf; names of keys in any case, the last of several counts.

    Raises:
        SettingsError: A line is no `Key=Value`, a value is not possible, or the commands do
            not make one of the two ways to run a container complete.
    """
    found: dict[str, object] = {}
    unknown: dict[str, str] = {}
    arguments: list[str] = []
    for number, line in logical_lines(text):
        settings, rest = pairs(line)
        if rest:
            raise SettingsError(f"{name}:{number}: not understood (quotes missing?): {rest}")
        for key, value in settings:
            field = _FIELDS.get(key.lower())
            if field is None:
                unknown[key] = value
            elif field == "srun_args":
                arguments.append(value)
            else:
                found[field] = _value(field, value, f"{name}:{number}: {key}")
    conf = msgspec.convert({**found, "srun_args": arguments, "unknown": unknown}, OciConf)
    _check(conf, name)
    return conf


def substitute(pattern: str, values: Values, *, shell: bool = True) -> str:
    """Fill in a pattern, oci.conf(5) "OCI Pattern".

    Commands run by `sh -c`, and a bundle's path or the container's arguments may be anything.
    So what is filled in is quoted for the place where it stands in the pattern: outside of
    quotes, or within single or double ones. Ordinary values come out as they are.

    Args:
        pattern: The text; `%%` is a percent sign.
        values: By letter: `b` bundle, `e` environment file, `j` job id, `m` spool directory,
            `n` node, `p` pid, `r` root file system, `s` step id, `t` task id, `u` user name,
            `U` uid, and at `@` the arguments as a list.
        shell: False for a pattern that is a path (ContainerPath, MountSpoolDir).

    Raises:
        SettingsError: The pattern asks for what is not there, or in a place
            (after an intricate `$(…)` or `${…}`, in a comment) where it cannot be quoted safely.
    """
    pieces = []
    place = _Place()
    position = 0
    for found in re.finditer(r"%(.?)", pattern, re.DOTALL):
        place.pass_over(pattern[position : found.start()])
        pieces.append(pattern[position : found.start()])
        position = found.end()
        letter = found[1]
        if letter == "%":
            pieces.append("%")
        elif letter not in values:
            raise SettingsError(f"%{letter} has no meaning here: {pattern}")
        else:
            value = values[letter]
            pieces.append(place.quote(value, pattern) if shell else str(value))
    return "".join(pieces) + pattern[position:]


class _Place:
    """Which quotes the end of the text so far is in, as sh(1) reads it.

    Attributes:
        quotes: The quotes that are open, or none.
        sure: False from where the text has what only a shell could follow.
    """

    def __init__(self) -> None:
        self.quotes = ""
        self.sure = True
        self.word_begins = True

    def pass_over(self, text: str) -> None:
        """Take in the next part of the pattern."""
        place = 0
        while place < len(text):
            if self.quotes == "'":
                end = text.find("'", place)
                self.quotes, place = ("", end + 1) if end >= 0 else ("'", len(text))
                continue
            found = _TOKEN.match(text, place)
            assert found
            token, place = found[0], found.end()
            last = place == len(text)
            if token in ("$(", "${", "`") or (token in ("$", "\\") and last):
                self.sure = False
            elif token == '"':
                self.quotes = "" if self.quotes else '"'
            elif not self.quotes:
                if token == "<<" or (token == "#" and self.word_begins):
                    self.sure = False
                elif token == "'":
                    self.quotes = "'"
            self.word_begins = token in tuple(" \t\n;&|()")

    def quote(self, value: str | Sequence[str], pattern: str) -> str:
        """Quote one word, or a list of words, for this place."""
        text = value if isinstance(value, str) else shlex.join(value)
        self.word_begins = False
        if "\0" in text:
            raise SettingsError(f"a value with a NUL character for: {pattern}")
        if self.sure and not self.quotes:
            return shlex.quote(text) if isinstance(value, str) else text
        if shlex.quote(text) == text:
            return text  # nothing in it has a meaning to sh anywhere
        if not self.sure:
            raise SettingsError(f"{text!r} cannot be quoted safely in: {pattern}")
        if self.quotes == '"':
            return re.sub(r'([\\"$`])', r"\\\1", text)
        return text.replace("'", "'\\''")


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
    return value


def _check(conf: OciConf, name: str) -> None:
    """Hold Slurm's own rule (oci_config.c): a complete set of commands, and one only."""
    if conf.ignore_file_config_json:
        return  # no OCI runtime at all, so Slurm does not look
    run = ["run_time_run", "run_time_kill", "run_time_delete"]
    create = ["run_time_create", "run_time_start", "run_time_query", *run[1:]]
    if conf.run_time_run is not None and (conf.run_time_create or conf.run_time_start):
        raise SettingsError(f"{name}: RunTimeRun excludes RunTimeCreate and RunTimeStart")
    for field in run if conf.mode == "run" else create:
        if getattr(conf, field) is None:
            key = "".join(part.capitalize() for part in field.split("_"))
            raise SettingsError(f"{name}: {key} is missing")
