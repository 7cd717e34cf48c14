"""The patterns and expressions of oci.conf(5). Pure.

A pattern is a command or a path in which `%` and a letter stand for something; an expression tells
which variables are left out.
"""

import os
import re
import shlex
import warnings
from collections.abc import Mapping, Sequence

from scrun.core.errors import SettingsError, shortened

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


# Whoever has a script of sh(1) after `-c`, and whoever puts all words together to one.
_SHELLS = frozenset(
    ("sh", "ash", "bash", "busybox", "dash", "ksh", "mksh", "zsh", "flock", "runuser", "script",
     "sg", "su")
)  # fmt: skip
_JOINING = frozenset(("eval", "ssh", "rsh", "pdsh", "clush"))
_LONGEST = 4096
_CODE = re.compile("-[a-zA-Z]*[ceES]")
_PLAIN = frozenset(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:,=+@%^~{}[]$'"
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
    quotes, within single or double ones, and within a script that the command hands to another
    shell. Ordinary values come out as they are.

    Args:
        pattern: The text; `%%` is a percent sign.
        values: What there is, by letter (`LETTERS`); at `@` the arguments, as a list.
        shell: False for a pattern that is a path (ContainerPath, MountSpoolDir).

    Raises:
        SettingsError: The pattern asks for what is not there, or in a place
            (after an intricate `$(…)` or `${…}`, in a comment) where it cannot be quoted safely.
    """
    pieces = []
    place = _Position()
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


class _Position:
    """Where the end of the text so far stands, as sh(1) reads it.

    A word may be read by a shell once more: the one after `sh -c`, and all that `eval` and ssh put
    together. Such text has a place of its own, `inner`, and what is filled in is quoted for that
    first.

    Attributes:
        quotes: The quotes that are open, or "".
        sure: False from where the text has what only a shell could follow.
        word: The one that has begun, without its quotes, or None.
        shell: Whether a word of this command was a shell, which has a script after `-c`.
        joins: Whether one was who puts all that follows together to a script.
        code: Whether the next word may be a program in some language, after `-c` or the like.
        inner: The place in the text that a shell reads once more, if this is such a word.
        unread: What of that text `inner` has not got yet: a token is in one piece there.
        blank: Whether more than one word is in the quotes that are open.
    """

    def __init__(self) -> None:
        self.quotes = ""
        self.sure = True
        self.word: str | None = None
        self.shell = self.joins = self.code = False
        self.inner: _Position | None = None
        self.unread: list[str] = []
        self.blank = False

    def pass_over(self, text: str) -> None:
        """Take in the next part of the pattern."""
        place = 0
        while place < len(text):
            if self.quotes == "'":
                end = text.find("'", place)
                self._add(text[place : end if end >= 0 else len(text)])
                if end < 0:
                    return
                self.quotes, self.blank, place = "", False, end + 1
                continue
            found = _TOKEN.match(text, place)
            assert found
            place = found.end()
            self._take(found[0], last=place == len(text))

    def _take(self, token: str, *, last: bool) -> None:
        """Take one token in, outside of single quotes."""
        if token in ("$(", "${", "`") or (token in ("$", "\\") and last):
            self.sure = False
        elif token == '"':
            self._begin()
            self.quotes, self.blank = ("" if self.quotes else '"'), False
        elif token[0] in "$`":
            self._add(token)
            if self.inner:  # what comes of it is text there
                self.inner.sure = False
        elif self.quotes:
            escaped = token[0] == "\\" and token[1] in '"$`\\\n'
            self._add(token[1:] if escaped else token)
        elif token in (" ", "\t"):
            self._end_word()
        elif token in tuple("\n;&|()"):
            self._end_word()
            self.inner = None
            self.shell = self.joins = self.code = False
        elif token == "<<" or (token == "#" and self.word is None):
            self.sure = False
        elif token == "'":
            self._begin()
            self.quotes, self.blank = "'", False
        else:
            self._add(token[1:] if token[0] == "\\" else token)

    def quote(self, value: str | Sequence[str], pattern: str) -> str:
        """Quote one word, or a list of words, for this place."""
        is_word = isinstance(value, str)
        text = value if isinstance(value, str) else " ".join(map(_quoted, value))
        if "\0" in text:
            raise SettingsError(f"a value with a NUL character for: {pattern}")
        self._begin()
        # "name %b" may be a title, and may be a command for whoever reads it
        unclear = not self.sure or (self.blank and is_word)
        if self.inner:
            self.inner.pass_over("".join(self.unread))
            self.unread.clear()
            text = self.inner.quote(value, pattern)
        elif unclear and shlex.quote(text) != text:  # else it has no meaning to sh anywhere
            raise SettingsError(
                f"{shortened(text)!r} cannot be quoted safely in: {pattern} (a script takes it as "
                "an argument: sh -c 'run \"$1\"' sh %b)"
            )
        if not (is_word or self.quotes or self.inner):
            for word in value:
                self._begin()
                self._grow(word)
                self._end_word()
            self._begin()
            return text
        self._grow(text)
        if self.quotes == '"':
            return re.sub(r'([\\"$`])', r"\\\1", text)
        return text.replace("'", "'\\''") if self.quotes else shlex.quote(text)

    def _begin(self) -> None:
        """Begin a word, unless one has begun."""
        if self.word is not None:
            return
        self.word = ""
        if self.joins and self.inner:
            self.unread.append(" ")
        elif self.joins or self.code:
            self.inner = _Position()
            self.unread.clear()
            self.inner.sure = self.joins or self.shell

    def _add(self, text: str) -> None:
        """Add text to the word, as it is without its quotes."""
        self._begin()
        self._grow(text)
        self.blank = self.blank or (bool(self.quotes) and not _PLAIN.issuperset(text))
        if self.inner:
            self.unread.append(text)

    def _grow(self, text: str) -> None:
        if len(self.word or "") < _LONGEST:  # else it is no command and no option
            self.word = (self.word or "") + text

    def _end_word(self) -> None:
        if self.word is None:
            return
        name = os.path.basename(self.word)
        self.shell = self.shell or name in _SHELLS
        self.joins = self.joins or name in _JOINING
        is_option = self.word.startswith(("-", "+"))
        self.code = is_option and (self.code or bool(_CODE.fullmatch(self.word)))
        self.word = None
        if not self.joins:
            self.inner = None


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
