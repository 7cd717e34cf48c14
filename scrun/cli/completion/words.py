"""What a shell may offer for scrun's command line, from the grammar's table.

The scripts for the shells (`bash`, `zsh`, `fish`) are made of
this. Nothing of the table is written down there, so a new command or option is completed as soon
as it is in the table.
"""

import re
import signal
from typing import Literal, NamedTuple

from scrun.cli.grammar import COMMANDS, CONTAINER, PERHAPS_CONTAINER, Option, options_of
from scrun.oci.signals import signal_name

SHELLS = ("bash", "zsh", "fish")

CARRIED = ("root", "config-file")
"""The global options that decide where containers are looked for, and so go to `list`."""

# their id is a new one
_NEW = ("create", "run", "restore")


class Value(NamedTuple):
    """What can stand in one place.

    Attributes:
        kind: `words` are those listed; `ids` what `scrun list` prints; `none` nobody can know.
        words: Those listed.
        name: What the manual calls it.
        optional: It is the value of an option that can do without.
    """

    kind: Literal["words", "ids", "directory", "file", "none"]
    words: tuple[str, ...] = ()
    name: str = ""
    optional: bool = False


class Choice(NamedTuple):
    """One option.

    Attributes:
        names: How it may be written, the long name first: `--root`, `-f`.
        value: What it takes; None for a flag.
        used: It means something here. One that does not is understood, but not offered.
        many: It may be given more than once.
        text: The line of help.
    """

    names: tuple[str, ...]
    value: Value | None
    used: bool
    many: bool
    text: str


def choices(command: str | None) -> list[Choice]:
    """Return the options of a command, or for None the global ones."""
    return [_choice(option) for option in options_of(command)]


def _choice(option: Option) -> Choice:
    name, letters, metavar, used, many, text = option
    # a question mark is a pattern for every shell
    short = (f"-{letter}" for letter in letters if letter.isalpha())
    return Choice((f"--{name}", *short), _value(metavar), used, many, text)


def _value(metavar: str | None) -> Value | None:
    if metavar is None:
        return None
    if re.fullmatch(r"\[?[a-z]+(\|[a-z]+)+]?", metavar):
        words = tuple(metavar.strip("[]").split("|"))
        return Value("words", words, "value", metavar[0] == "[")
    if metavar == "DIR":
        return Value("directory", name=metavar)
    return Value("file" if metavar in ("FILE", "PATH", "SOCKET") else "none", name=metavar)


def places(command: str) -> list[Value]:
    """Return the operands of a command, those that take all that is left as one."""
    return [_place(command, written) for written in COMMANDS[command][1]]


def _place(command: str, written: str) -> Value:
    name = written.strip("<[.]>")
    if written in (CONTAINER, PERHAPS_CONTAINER):
        return Value("none" if command in _NEW else "ids", name="container")
    if written == "[command]":
        return Value("words", tuple(COMMANDS), name)
    if written == "[signal]":
        return Value("words", _signals(), name)
    if "|" in name:
        return Value("words", tuple(name.split("|")), "value")
    return Value("file" if name == "file" else "none", name=name)


def _signals() -> tuple[str, ...]:
    """Return the names of the signals that have one of their own."""
    return tuple(signal_name(number).removeprefix("SIG") for number in sorted(signal.Signals))


def in_order(command: str) -> bool:
    """Whether the options of a command end at its first operand, as the rest is not scrun's."""
    written = COMMANDS[command][1]
    return bool(written) and written[-1].endswith("...]")
