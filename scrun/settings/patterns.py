"""The patterns and expressions of oci.conf(5). Pure.

A pattern is a command or a path in which `%` and a letter stand for something; an expression tells
which variables are left out.
"""

import re
import shlex
import warnings
from collections.abc import Mapping, Sequence

from scrun.errors import SettingsError

Values = Mapping[str, str | Sequence[str]]

LETTERS = {
    "%": "a percent sign",
    "@": "the command and its arguments",
    "b": "the bundle",
    "e": "the file with the environment",
    "j": "the job's number",
    "m": "the directory of the step",
    "n": "the node's name",
    "p": "the pid of the task",
    "r": "the root file system",
    "s": "the step's number",
    "t": "the task's number",
    "u": "the user's name",
    "U": "the user's number",
    "Z": "the job's working directory",
}
"""What Slurm has up to 26.05: `U`, `m` and `p` since 23.02, `Z` since 26.05."""

# What sh(1) takes together; a substitution as a whole when nothing in it needs understanding.
_TOKEN = re.compile(
    r"""\\.|\$\{\w+\}|\$\([^()'"`\\{}$#<]*\)|`[^`'"\\$#<]*`|\$[({]|<<|.""", re.DOTALL
)


def check_letters(pattern: str) -> None:
    """Hold that a pattern has no letter but those that there are.

    Raises:
        SettingsError: It has.
    """
    for found in re.finditer(r"%(.?)", pattern, re.DOTALL):
        if found[1] not in LETTERS:
            raise SettingsError(f"{found[0]} has no meaning: {pattern}")


def substitute(pattern: str, values: Values, *, shell: bool = True) -> str:
    """Fill in a pattern, oci.conf(5) "OCI Pattern".

    Commands run by `sh -c`, and a bundle's path or the container's arguments may be anything.
    So what is filled in is quoted for the place where it stands in the pattern: outside of
    quotes, or within single or double ones. Ordinary values come out as they are.

    Args:
        pattern: The text; `%%` is a percent sign.
        values: What there is, by letter (`LETTERS`); at `@` the arguments, as a list.
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
        text = value if isinstance(value, str) else " ".join(map(_quoted, value))
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


def _quoted(argument: str) -> str:
    """Quote a word as oci.conf(5) has it for `%@`: always, and by single quotes."""
    return "'" + argument.replace("'", "'\"'\"'") + "'"


_CLASSES = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "blank": r" \t", "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9", "graph": r"!-~", "lower": "a-z", "print": r" -~",
    "punct": r"!-/:-@\[-`{-~", "space": r" \t\n\r\f\v", "upper": "A-Z", "xdigit": "0-9a-fA-F",
}  # fmt: skip


def extended(expression: str) -> re.Pattern[str]:
    """Compile an extended regular expression of POSIX, as far as Python's differ.

    Raises:
        SettingsError: It is none.
    """
    known = "|".join(_CLASSES)
    text = re.sub(rf"\[:({known}):\]", lambda found: _CLASSES[found[1]], expression)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `[[` may mean a set of sets one day
            return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise SettingsError(f"{expression}: no regular expression: {error}") from None


def without(environment: Mapping[str, str], expression: str | None) -> dict[str, str]:
    """Return the variables of which `NAME=VALUE` does not match; all, where there is none."""
    if expression is None:
        return dict(environment)
    excluded = extended(expression)
    return {
        name: value
        for name, value in environment.items()
        if not excluded.search(f"{name}={value}")
    }


_PREFIXED = re.compile(r"(?<![\w-])(kill\s+(?:-s\s*|-))SIG(?=[A-Z])")
_INNER = re.compile(r"""\$\([^()'"`\\{}$#<]*\)|"[^"]*"|'[^']*'|\\.""", re.DOTALL)
_BUILT_IN = frozenset(
    (
        "alias", "bg", "break", "case", "cd", "command", "continue", "eval", "exec", "exit",
        "export", "fg", "for", "function", "if", "jobs", "local", "read", "readonly", "return",
        "set", "shift", "source", "time", "times", "trap", "type", "ulimit", "umask", "unalias",
        "unset", "until", "wait", "while",
    )
)  # fmt: skip


def in_place_of_the_shell(pattern: str) -> str:
    """Have a shell become the command, if it is but one.

    Not every shell does so by itself (Debian's does not), and what is told to the process then
    only ends the shell.
    """
    first = re.match(r"\s*([\w/][\w./+-]*)(?:\s|$)", pattern)
    simple = not set(_INNER.sub("", pattern)) & set(";&|<>(){}`\n\\\"'")
    if first is None or first[1] in _BUILT_IN or not simple:
        return pattern
    return f"exec {pattern.lstrip()}"


def portable(command: str) -> str:
    """Take SIG from the names of signals that kill(1) is given.

    POSIX has them without, and some shells have no others ("invalid signal number or name:
    SIGTERM"). Slurm's documentation has SIG in its examples.
    """
    return _PREFIXED.sub(r"\1", command)
