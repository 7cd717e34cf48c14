"""What the manual pages take from scrun's own tables, in words of reStructuredText."""

import inspect
import re
import signal
import textwrap
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import inspect as inspected

from scrun.cli.grammar import COMMANDS, CONTAINER, IMAGES
from scrun.core.version import SPEC, VERSION
from scrun.model import states
from scrun.oci.signals import signal_name
from scrun.settings import script
from scrun.settings.file import load, sources
from scrun.settings.slurm.outputs import ScriptFacts
from scrun.settings.slurm.requests import JobVariable, Release
from scrun.supervisor.sessions import operations

# Texts of the code


def literal(text: str) -> str:
    """Make reStructuredText of a text of the code: literals in backticks, all else as it is."""
    parts = text.split("`")
    return "`".join(
        part if number % 2 else re.sub(r"([\\*_|])", r"\\\1", part)
        for number, part in enumerate(parts)
    )


def attributes(kind: type) -> dict[str, str]:
    """Return what a class's docstring says about its attributes."""
    _, _, text = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", textwrap.dedent(text)):
        name, _, words = entry.partition(":")
        found[name] = " ".join(words.split())
    return found


def substitutions() -> str:
    """Return single facts, to stand at the end of each page: `|version|` and so on."""
    facts = {
        "version": VERSION,
        "spec": SPEC,
        "system file": f"`{sources.SYSTEM_FILE}`",
        "user file": f"`~/{sources.USER_FILE}`",
        "usual script": f"`{script.USUAL}`",
        "fatal": _signals(states.FATAL),
        "fatal to the anchor": _signals(states.FATAL - {signal.SIGKILL}),
        "shells": ", ".join(operations._SHELLS),
    }
    return "".join(f"\n.. |{name}| replace:: {text}" for name, text in facts.items())


def _signals(numbers: Iterable[int]) -> str:
    *some, last = (signal_name(number) for number in sorted(numbers))
    return f"{', '.join(some)} and {last}"


# The command line


def usages(command: str) -> list[tuple[str, str]]:
    """Return a command and its operands, in each form that it has."""
    _, operands, options = COMMANDS[command]
    begin = f"**{command}**" + (" [*OPTIONS*]" if options else "")
    forms = [operands, *([tuple(IMAGES.split())] if command == "run" else [])]
    return [(begin, " ".join(map(_operand, form))) for form in forms]


def _operand(written: str) -> str:
    if written == CONTAINER:
        return "*ID*"
    if "|" in written:
        return _choices(written.strip("<>"))
    name = f"*{written.strip('<[.]>').upper()}*"
    many = r"\ ..." if "..." in written else ""
    return f"{name}{many}" if written[0] == "<" else rf"[{name}{many}]"


def names(long: str, letters: str, metavar: str | None) -> str:
    """Return the names of an option and its value."""
    if metavar is None:
        value = ""
    elif metavar[0] == "[":
        value = rf"\ [\ =\ {_choices(metavar)}\ ]"
    else:
        value = rf"\ =\ {_choices(metavar)}"
    return ", ".join([*(f"**-{letter}**" for letter in letters), f"**--{long}**{value}"])


def _choices(metavar: str) -> str:
    inner = metavar[1:-1] if metavar[0] == "[" else metavar
    words = inner.split("|")
    return r"\ \|\ ".join(f"`{word}`" for word in words) if len(words) > 1 else f"*{words[0]}*"


# Requests


def tools(request: JobVariable) -> str:
    """Say which tool has the option."""
    both = "salloc and srun"
    return {"job": "salloc", "step": "srun", "both": both, "scrun": "scrun"}[request.scope]


def releases(request: JobVariable) -> str:
    """Say which versions of Slurm have it, if not all."""
    every = JobVariable("", "")
    since = f"since {_release(request.since)}" if request.since != every.since else ""
    until = f"before {_release(request.until)}" if request.until else ""
    return " ".join(filter(None, (since, until)))


def _release(release: Release) -> str:
    return f"{release[0]}.{release[1]:02}"


def outputs() -> dict[str, str]:
    """Return the variables for scripts, with what the code says about them."""
    return {
        "SCRUN_ANNOTATION_*KEY*" if name == "annotations" else f"SCRUN_{name.upper()}": text
        for name, text in attributes(ScriptFacts).items()
    }


# Settings


def sections() -> dict[str, type[msgspec.Struct]]:
    """Return the classes of the settings by the name of the table; "" is the file itself."""
    found: dict[str, type[msgspec.Struct]] = {"": load.Settings}
    for field in _fields(load.Settings):
        if isinstance(field.type, inspected.StructType):
            found[field.encode_name] = field.type.cls
    return found


def keys(section: str) -> dict[str, inspected.Field]:
    """Return the keys of a table of scrun.toml, without those that are tables."""
    return {
        field.encode_name: field
        for field in _fields(sections()[section])
        if not isinstance(field.type, inspected.StructType)
    }


def _fields(kind: type[msgspec.Struct]) -> Sequence[inspected.Field]:
    described = inspected.type_info(kind)
    assert isinstance(described, inspected.StructType)
    return described.fields


def values(field: inspected.Field) -> str:
    """Say what a key may be, and what it is by default."""
    default = field.default
    if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if default in (None, (), [], {}):
        end = "not set by default"
    elif isinstance(default, bool):
        end = f"default `{str(default).lower()}`"
    else:
        end = f'default `"{default}"`' if isinstance(default, str) else f"default `{default}`"
    kind = _kind(field.type)
    return f"{kind[:1].upper()}{kind[1:]}; {end}."


def _kind(kind: inspected.Type) -> str:
    match kind:
        case inspected.UnionType(types=members):
            some = [member for member in members if not isinstance(member, inspected.NoneType)]
            return " or ".join(map(_kind, some))
        case inspected.LiteralType(values=words) if {*words} == {*load.LEVELS}:
            return "the name of a level"
        case inspected.LiteralType(values=words):
            return "one of " + ", ".join(f'`"{word}"`' for word in sorted(map(str, words)))
        case inspected.StrType(pattern="^/"):
            return "an absolute path"
        case inspected.StrType(pattern="^(/|none$)"):
            return 'an absolute path, or `"none"`'
        case inspected.StrType(pattern=load.AUDIT):
            return 'an absolute path, `"syslog"` or `"journald"`'
        case inspected.StrType(pattern=load.PLUGIN):
            return "the name of a plugin"
        case inspected.StrType(pattern=load.POOL_NAME):
            return "a name of letters, digits and `_.-`"
        case inspected.StrType(pattern=None | load.JOB_NAME):
            return "a string"
        case inspected.IntType(ge=least, le=int(most)):
            return f"an integer from {least} to {most}"
        case inspected.IntType(ge=int(least)):
            return f"an integer, {least} or more"
        case inspected.FloatType(ge=least) if least is not None:
            return f"a number, {least:g} or more"
        case inspected.BoolType():
            return "`true` or `false`"
        case inspected.VarTupleType() | inspected.ListType():
            return f"a list; each entry is {_kind(kind.item_type)}"
        case inspected.DictType():
            return "a table"
    raise TypeError(f"no words for {kind}")


def settings_variables() -> dict[str, str]:
    """Return the variables that stand above scrun.toml, with the key that they are for."""
    found = {}
    for variable, setting in load.OF_SETTINGS.items():
        section, _, key = setting.rpartition(".")
        found[variable] = f"`{key}` in `[{section}]`" if section else f"`{key}`"
    return found
