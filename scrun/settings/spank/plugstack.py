"""plugstack.conf(5): the Lua scripts that a site runs at each phase of a job.

Its format is that of spank(7): a line for each plugin, with `required` or `optional` (or an
abbreviation), the plugin and its arguments; `include` with a pattern; `#` begins a comment
anywhere; there are no quotes. Only lines of `lua.so`, spank-lua(8), count here: `lua.so
[failonerror] GLOB [ARGUMENT…]`. All other plugins are compiled, and only Slurm can load them.

The options that these scripts register get their values from, highest first:

1. the command line of `create` or `run`: `--NAME`, `--NAME=VALUE`
   (`scrun.client.plugin_options` turns it into the variable),
2. SCRUN_OPTION_NAME in the environment of `create`, NAME in upper case with `_` for `-` and `.`,
3. the annotation `slurm.option.NAME` of config.json.

An annotation may come from an image, and its value reaches a script of the site: so only plain
values are accepted. `process.env` of config.json does not count.

An annotation for an unknown option is refused, like one for an unknown request
(docs/decisions/annotations.md); an empty one is ignored. Unknown variables are ignored, too.
"""

import functools
import glob
import os
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from scrun.core.errors import SettingsError, SpankError, hint
from scrun.settings.file.load import Settings
from scrun.settings.slurm.request_sources import OPTIONS as PREFIX
from scrun.settings.slurm.request_sources import PLAIN
from scrun.settings.slurm_conf import (
    check_trusted,
    find_slurm_conf,
    read_slurm_conf,
    read_trusted_conf,
)

NAME = "plugstack.conf"

_PLUGIN = "lua.so"
_FAIL_ON_ERROR = "failonerror"
_WORDS = ("required", "optional", "include")
_DEPTH = 10
_FILES = 1000
_SCRIPTS = 1000
_LONGEST = 4096  # as a path; fnmatch takes n * n steps for a pattern of n brackets


class PlugstackLine(msgspec.Struct, frozen=True):
    """A line of `lua.so`, with the file and the line number.

    `required`: a container is refused when a script fails; `fails_on_error`: an error in a script
    is a failure, besides a result of -1. `pattern` is the path of the script, or of several.
    """

    where: str
    required: bool
    fails_on_error: bool
    plugin: str
    pattern: str
    arguments: tuple[str, ...]


class StackScript(msgspec.Struct, frozen=True):
    """One script of a line; `trusted` may have written it, besides root and the caller."""

    path: str
    line: PlugstackLine
    trusted: tuple[int, ...] = ()


def find_plugstack(settings: Settings, places: tuple[str, ...] | None = None) -> str | None:
    """Find the plugstack.conf. Its file system may hang: call this in a thread.

    `plugstack` of `[spank]` comes first; `none` means no file. Without `places`, slurm.conf is
    looked for in the usual ones.
    """
    named = settings.spank.plugstack
    if named is not None:
        return None if named == "none" else named
    conf = find_slurm_conf(settings) if places is None else find_slurm_conf(settings, places)
    if conf is None:
        return None
    try:
        status = os.stat(conf)
    except OSError:
        return None  # Slurm's tools report it
    named = _read_slurm_conf(conf, status.st_mtime_ns, status.st_size)
    path = os.path.join(os.path.dirname(conf), named or NAME)
    return path if named or os.path.exists(path) else None


@functools.lru_cache(maxsize=8)
def _read_slurm_conf(conf: str, changed: int, size: int) -> str | None:
    """Read PlugStackConfig once for each version of a slurm.conf: there may be many containers."""
    del changed, size
    return read_slurm_conf(conf).get("plugstackconfig")


def read_plugstack(path: str, trusted: tuple[int, ...] = ()) -> list[PlugstackLine]:
    """Read a plugstack.conf and what it includes, of root, the caller or `trusted`."""
    found: list[PlugstackLine] = []
    _read(path, found, _DEPTH, [], trusted)
    return found


def find_scripts(lines: list[PlugstackLine], trusted: tuple[int, ...] = ()) -> list[StackScript]:
    """Find the scripts of all lines, in order; refuse what others may have written."""
    found = []
    for line in lines:
        # as glob(3): a path that is not there is no script, and no failure either
        for path in sorted(glob.glob(line.pattern)):
            if os.path.isdir(path):
                continue
            check_trusted(path, trusted)
            found.append(StackScript(path, line, trusted))
    if len(found) > _SCRIPTS:
        raise SettingsError(f"{lines[0].where}: more than {_SCRIPTS} scripts")
    return found


def _read(
    path: str, found: list[PlugstackLine], depth: int, read: list[str], trusted: Collection[int]
) -> None:
    if depth == 0:
        raise SettingsError(f"{path}: included more than {_DEPTH} levels deep")
    if len(read) == _FILES:
        raise SettingsError(f"{path}: more than {_FILES} files are included")
    read.append(path)
    text = read_trusted_conf(path, trusted)
    for number, physical in enumerate(text.split("\n"), 1):
        words = physical.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}:{number}"
        if "\0" in physical:
            raise SettingsError(f"{where}: contains a NUL character")
        if max(map(len, words)) > _LONGEST:
            raise SettingsError(f"{where}: a word of more than {_LONGEST} characters")
        kind = _kind(words[0], where)
        if kind == "include":
            for inner in _included(words[1:], where, os.path.dirname(path)):
                _read(inner, found, depth - 1, read, trusted)
        elif line := _plugin(words[1:], where, required=kind == "required"):
            found.append(line)


def _kind(word: str, where: str) -> str:
    kind = next((known for known in _WORDS if known.startswith(word)), None)
    if kind is None or (kind == "include" and word != kind):
        raise SettingsError(f"{where}: {word}: required, optional or include expected")
    return kind


def _included(words: list[str], where: str, directory: str) -> list[str]:
    if len(words) != 1:
        raise SettingsError(f"{where}: include needs one file, or a pattern of files")
    return sorted(glob.glob(os.path.join(directory, words[0])))


def _plugin(words: list[str], where: str, *, required: bool) -> PlugstackLine | None:
    """Parse the rest of a plugin's line; None for a compiled plugin."""
    if not words:
        raise SettingsError(f"{where}: the plugin is missing")
    plugin, *rest = words
    if os.path.basename(plugin) != _PLUGIN:
        return None
    fails = rest[:1] == [_FAIL_ON_ERROR]
    if fails:
        rest = rest[1:]
    if not rest:
        raise SettingsError(f"{where}: {_PLUGIN} needs a script, or a pattern of scripts")
    if not rest[0].startswith("/"):
        raise SettingsError(f"{where}: {rest[0]}: an absolute path expected")
    return PlugstackLine(where, required, fails, plugin, rest[0], tuple(rest[1:]))


VARIABLE = "SCRUN_OPTION_"

_NONE, _NEEDED, _POSSIBLE = 0, 1, 2
_ON = ("", "1", "yes", "true", "on", "y", "t")
_OFF = ("0", "no", "false", "off", "n", "f")
_LONGEST_VALUE = 4096
_LONGEST_NAME = 80
_SHOWN = 10


class Option(msgspec.Struct, frozen=True):
    """An option `--NAME` that a script has registered.

    `takes`: 0: it takes no value, 1: it needs one, 2: it may have one, named `argument`. The
    script's `function`, if any, is called with it, and with the number `val`.
    """

    name: str
    usage: str
    takes: int = 0
    argument: str = ""
    function: str = ""
    val: int = 0


class Given(msgspec.Struct, frozen=True):
    """The options that were given, None without a value; and a note about each ignored one."""

    values: dict[str, str | None]
    notes: tuple[str, ...] = ()


def variable_of(name: str) -> str:
    return VARIABLE + name.upper().replace("-", "_").replace(".", "_")


def read_given(
    options: Iterable[Option],
    environment: Mapping[str, str],
    annotations: Mapping[str, str],
    *,
    must_be_known: bool = True,
) -> Given:
    """Find out which of the registered options were given.

    `must_be_known`: annotations for other options are refused. SpankError also if a value is
    missing, invalid or not allowed from an image.
    """
    values: dict[str, str | None] = {}
    asked = {
        variable_of(name.removeprefix(PREFIX)): (name, value)
        for name, value in annotations.items()
        if name.startswith(PREFIX)
    }
    known: dict[str, str] = {}
    for option in options:
        variable = variable_of(option.name)
        known[variable] = option.name
        if variable in environment:
            text, source = environment[variable], variable
        elif variable in asked:
            name, text = asked[variable]
            source = f"annotation {name}"
            _check_plain(source, text, variable)
        else:
            continue
        _take(option, text, source, values)
    for variable, (name, text) in asked.items():
        if must_be_known and text and variable not in {**known, **environment}:
            nearest = hint(name.removeprefix(PREFIX)[:_LONGEST_NAME], known.values(), PREFIX)
            raise SpankError(
                f"config.json: annotation {_shown(name)}: no script of plugstack.conf has such an "
                f"option{nearest}"
            )
    named = {key: key for key in environment if key.startswith(VARIABLE)}
    named |= {variable: f"annotation {name}" for variable, (name, _) in asked.items()}
    unknown = [source for variable, source in named.items() if variable not in known]
    return Given(values, tuple(_notes(unknown)))


def _take(option: Option, text: str, source: str, into: dict[str, str | None]) -> None:
    if option.takes == _NONE:
        if text.lower() in _ON:
            into[option.name] = None
        elif text.lower() not in _OFF:
            raise SpankError(f"{source}={_shown(text)}: --{option.name} takes no value")
    elif text:
        into[option.name] = text
    elif option.takes == _POSSIBLE:
        into[option.name] = None
    else:
        what = option.argument or "VALUE"
        raise SpankError(f"{source}: --{option.name} needs a value, {what}")


def _check_plain(source: str, text: str, variable: str) -> None:
    if len(text) > _LONGEST_VALUE or not PLAIN.fullmatch(text):
        raise SpankError(
            f"{source}={_shown(text)}: is not accepted from an image (file names, quotes, control "
            f"characters): set {variable} in the environment of create"
        )


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:77] + "...")[1:-1]


def _notes(unknown: Sequence[str]) -> Iterable[str]:
    for source in unknown[:_SHOWN]:
        yield f"{_shown(source)} is ignored: no script of plugstack.conf has such an option"
    if (more := len(unknown) - _SHOWN) > 0:
        yield f"{more} more options are ignored: no script has them either"
