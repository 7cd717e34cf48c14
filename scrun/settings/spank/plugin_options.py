"""Options that scripts of plugstack.conf register, and where their values come from.

Highest first:

1. the command line of `create` or `run`: `--NAME`, `--NAME=VALUE`
   (`scrun.client.plugin_options` turns it into the variable),
2. SCRUN_OPTION_NAME in the environment of `create`, NAME in upper case with `_` for `-` and `.`,
3. the annotation `slurm.option.NAME` of config.json.

An annotation may come from an image, and its value reaches a script of the site: so only plain
values are accepted. `process.env` of config.json does not count.

An annotation for an unknown option is refused, like one for an unknown request
(docs/decisions/annotations.md); an empty one is ignored. Unknown variables are ignored, too.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from scrun.core.errors import SpankError, hint
from scrun.settings.slurm.engine_flags import OPTIONS as PREFIX
from scrun.settings.slurm.request_sources import PLAIN

VARIABLE = "SCRUN_OPTION_"

_NONE, _NEEDED, _POSSIBLE = 0, 1, 2
_ON = ("", "1", "yes", "true", "on", "y", "t")
_OFF = ("0", "no", "false", "off", "n", "f")
_LONGEST = 4096
_LONGEST_NAME = 80
_SHOWN = 10


class Option(msgspec.Struct, frozen=True):
    """An option that a script has registered.

    Attributes:
        name: Its name: `--NAME`.
        usage: One line of help.
        takes: 0: it takes no value, 1: it needs one, 2: it may have one.
        argument: The name of its value, or "".
        function: The function of the script that is called with it, or "".
        val: The number that is passed to the function.
    """

    name: str
    usage: str
    takes: int = 0
    argument: str = ""
    function: str = ""
    val: int = 0


class Given(msgspec.Struct, frozen=True):
    """The options that were given.

    Attributes:
        values: Values by name; None for an option without a value.
        notes: A line for the log about each option that is ignored.
    """

    values: dict[str, str | None]
    notes: tuple[str, ...] = ()


def variable_of(name: str) -> str:
    """Return the name of an option's variable."""
    return VARIABLE + name.upper().replace("-", "_").replace(".", "_")


def is_annotation(name: str) -> bool:
    """Tell whether an annotation is about an option."""
    return name.startswith(PREFIX)


def read_given(
    options: Iterable[Option],
    environment: Mapping[str, str],
    annotations: Mapping[str, str],
    *,
    must_be_known: bool = True,
) -> Given:
    """Find out which of the registered options were given.

    `must_be_known` says whether to refuse annotations for other options.

    Raises:
        SpankError: A value is missing, invalid or not allowed from an image; or there is no such
            option.
    """
    values: dict[str, str | None] = {}
    asked = {
        variable_of(name.removeprefix(PREFIX)): (name, value)
        for name, value in annotations.items()
        if is_annotation(name)
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
        _read(option, text, source, values)
    for variable, (name, text) in asked.items():
        if must_be_known and text and variable not in {**known, **environment}:
            raise SpankError(
                f"config.json: annotation {_shown(name)}: no script of plugstack.conf has such an "
                f"option{_nearest(name, known.values())}"
            )
    named = {key: key for key in environment if key.startswith(VARIABLE)}
    named |= {variable: f"annotation {name}" for variable, (name, _) in asked.items()}
    unknown = [source for variable, source in named.items() if variable not in known]
    return Given(values, tuple(_notes(unknown)))


def _read(option: Option, text: str, source: str, into: dict[str, str | None]) -> None:
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
    if len(text) > _LONGEST or not PLAIN.fullmatch(text):
        raise SpankError(
            f"{source}={_shown(text)}: is not accepted from an image (file names, quotes, control "
            f"characters): set {variable} in the environment of create"
        )


def _nearest(name: str, known: Iterable[str]) -> str:
    return hint(name.removeprefix(PREFIX)[:_LONGEST_NAME], known, PREFIX)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:77] + "...")[1:-1]


def _notes(unknown: Sequence[str]) -> Iterable[str]:
    for source in unknown[:_SHOWN]:
        yield f"{_shown(source)} is ignored: no script of plugstack.conf has such an option"
    if (more := len(unknown) - _SHOWN) > 0:
        yield f"{more} more options are ignored: no script has them either"
