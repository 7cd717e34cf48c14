"""What a shell offers for an unfinished command line, from the grammar's table.

A new command or option is completed as soon as it is in the table. Every press of the key calls
this: it imports nothing but its like.
"""

import os

from scrun.cli.grammar import (
    COMMANDS,
    CONTAINER,
    MORE_CONTAINERS,
    PERHAPS_CONTAINER,
    Option,
    options_of,
)
from scrun.cli.parse import Parsed, open_ended, resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Place = tuple[str, tuple[str, ...]]
    """What can stand in one place: `words` (those listed), `ids` (of containers that there are),
    `file`, `directory`, or `none`: nobody can know."""

_NEW = ("create", "run", "restore")
"""Their id is a new one."""

_NONE: "Place" = ("none", ())


def complete(words: list[str], ids: "Callable[[Parsed], Iterable[str]]") -> tuple[str, list[str]]:
    """Tell what could stand where the cursor is; `ids` lists containers for global options.

    Returns `file`, `directory` or `words`; and the words with a tab and a description each, those
    after `--NAME=` with that in front.
    """
    *before, current = words
    parsed, position, over = Parsed(), 0, False
    command: str | None = None
    awaited: Option | None = None
    for word in before:
        is_option = len(word) > 1 and word[0] == "-" and not over
        if awaited:
            _take(parsed, command, awaited, word)
            awaited = None
        elif is_option and word == "--":
            over = True
        elif is_option:
            for option, value in resolve(word, options_of(command)) or ():
                if value is not None:
                    _take(parsed, command, option, value)
                elif option[2] is not None and option[2][0] != "[":
                    awaited = option
        elif command is None:
            command, over = word.lower(), False
            if command not in COMMANDS:
                return _NONE[0], []
        else:
            position, over = position + 1, over or open_ended(COMMANDS[command][1])

    name, equals, _ = current.partition("=")
    start, what = "", _NONE
    if awaited:
        what = value_of(awaited[2])
    elif current[:1] == "-" and not over:
        if not equals:
            return "words", _beginning(current, _options(command))
        start = name + equals
        for option, _ in (resolve(name, options_of(command)) if len(name) > 1 else None) or ():
            what = value_of(option[2])
    elif command is None:
        return "words", _beginning(current, ((name, COMMANDS[name][0]) for name in COMMANDS))
    else:
        written = COMMANDS[command][1]
        if written[-1:] == (MORE_CONTAINERS,):
            position = min(position, len(written) - 1)
        what = [*places(command)[position : position + 1], _NONE][0]
    kind, listed = what
    if kind == "ids":
        kind, listed = "words", (*ids(parsed),)
    return kind, _beginning(current, ((start + word, "") for word in listed))


def _take(parsed: Parsed, command: str | None, option: Option, value: str) -> None:
    """Keep a global option: `--root` and `--config-file` decide where containers are."""
    if command is None:
        parsed.options[option[0]] = os.path.expanduser(value)


def _beginning(current: str, found: "Iterable[tuple[str, str]]") -> list[str]:
    return [f"{word}\t{about}" for word, about in found if word.startswith(current)]


def _options(command: str | None) -> "Iterable[tuple[str, str]]":
    """List the options that mean something here; others are understood, but not offered."""
    for name, letters, _, used, _, about in options_of(command):
        if used:
            yield f"--{name}", about
            # a question mark is a pattern for every shell
            yield from ((f"-{letter}", about) for letter in letters if letter.isalpha())


def value_of(metavar: str | None) -> "Place":
    """Tell what an option takes."""
    if metavar is None:
        return _NONE
    if "|" in metavar:
        return "words", tuple(metavar.strip("[]").split("|"))
    if metavar == "DIR":
        return "directory", ()
    return "file" if metavar in ("FILE", "PATH", "SOCKET") else "none", ()


def places(command: str) -> "list[Place]":
    """Tell what the operands of a command are, those that take all that is left as one."""
    return [_place(command, written) for written in COMMANDS[command][1]]


def _place(command: str, written: str) -> "Place":
    name = written.strip("<[.]>")
    if written in (CONTAINER, MORE_CONTAINERS, PERHAPS_CONTAINER):
        if command == "run":  # or an image
            return "file", ()
        return "none" if command in _NEW else "ids", ()
    if written == "[command]":
        return "words", tuple(COMMANDS)
    if written == "[signal]":
        import signal

        return "words", tuple(one.name.removeprefix("SIG") for one in sorted(signal.Signals))
    if "|" in name:
        return "words", tuple(name.split("|"))
    return "file" if name in ("file", "source", "destination") else "none", ()
