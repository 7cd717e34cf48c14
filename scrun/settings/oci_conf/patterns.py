"""The patterns and expressions of oci.conf(5). Pure.

A pattern is a command or a path in which `%` and a letter stand for a value; an expression selects
variables to leave out.
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
"""The letters of Slurm up to 26.05: `U`, `m` and `p` since 23.02, `Z` since 26.05."""

# The tokens of sh(1); a simple substitution is one token.
_TOKEN = re.compile(
    r"""\\.|\$\{\w+\}|\$\([^()'"`\\{}$#<]*\)|`[^`'"\\$#<]*`|\$[({]|<<|.""", re.DOTALL
)


# Programs with a script of sh(1) after `-c`, and programs that join all their words to a script.
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
    """Check that a pattern has only letters of `LETTERS`."""
    for found in re.finditer(r"%(.?)", pattern, re.DOTALL):
        if found[1] not in LETTERS:
            raise SettingsError(f"{found[0]} has no meaning: {pattern}")


def substitute(pattern: str, values: Values, *, shell: bool = True) -> str:
    """Fill in a pattern, oci.conf(5) "OCI Pattern"; the values are by letter (`LETTERS`).

    Commands run by `sh -c`, and a bundle's path or the container's arguments (`@`, a list) are
    untrusted. So a value is quoted for its position in the pattern: outside quotes, within single
    or double ones, and within a script that the command passes to another shell. Ordinary values
    are not changed. Without `shell` the pattern is a path (ContainerPath, MountSpoolDir).

    Raises:
        SettingsError: A letter has no value, or stands where its value cannot be quoted safely
            (after a complex `$(…)` or `${…}`, in a comment).
    """
    pieces = []
    state = _Position()
    position = 0
    for found in re.finditer(r"%(.?)", pattern, re.DOTALL):
        state.pass_over(pattern[position : found.start()])
        pieces.append(pattern[position : found.start()])
        position = found.end()
        letter = found[1]
        if letter == "%":
            pieces.append("%")
        elif letter not in values:
            raise SettingsError(f"%{letter} has no meaning here: {pattern}")
        else:
            value = values[letter]
            pieces.append(state.quote(value, pattern) if shell else str(value))
    return "".join(pieces) + pattern[position:]


class _Position:
    """The state of sh(1) at the end of the text so far.

    A shell may parse a word a second time: the one after `sh -c`, and all words that `eval` and
    ssh join. Such text has a position of its own, `inner`, and a value is quoted for that first.

    Attributes:
        quotes: The open quotes, or "".
        sure: False after text that only a shell could understand.
        word: The current word without its quotes, or None between words.
        shell: Whether a word of this command was a shell, which has a script after `-c`.
        joins: Whether a word was a program that joins all following words to a script.
        code: Whether the next word may be code in some language, after `-c` or the like.
        inner: The position in the text that a shell parses again, if this is such a word.
        unread: Text for `inner` that it has not got yet, because it needs whole tokens.
        blank: Whether the open quotes contain more than one word.
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
        index = 0
        while index < len(text):
            if self.quotes == "'":
                end = text.find("'", index)
                self._add(text[index : end if end >= 0 else len(text)])
                if end < 0:
                    return
                self.quotes, self.blank, index = "", False, end + 1
                continue
            found = _TOKEN.match(text, index)
            assert found
            index = found.end()
            self._take(found[0], last=index == len(text))

    def _take(self, token: str, *, last: bool) -> None:
        if token in ("$(", "${", "`") or (token in ("$", "\\") and last):
            self.sure = False
        elif token == '"':
            self._begin()
            self.quotes, self.blank = ("" if self.quotes else '"'), False
        elif token[0] in "$`":
            self._add(token)
            if self.inner:  # its result is text there
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
        """Quote one word, or a list of words, for this position."""
        is_word = isinstance(value, str)
        text = value if isinstance(value, str) else " ".join(map(_quoted, value))
        if "\0" in text:
            raise SettingsError(f"a value with a NUL character for: {pattern}")
        self._begin()
        # "name %b" may be a title, or a command for another program
        unclear = not self.sure or (self.blank and is_word)
        if self.inner:
            self.inner.pass_over("".join(self.unread))
            self.unread.clear()
            text = self.inner.quote(value, pattern)
        elif unclear and shlex.quote(text) != text:  # else it has no special characters
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
        self._begin()
        self._grow(text)
        self.blank = self.blank or (bool(self.quotes) and not _PLAIN.issuperset(text))
        if self.inner:
            self.unread.append(text)

    def _grow(self, text: str) -> None:
        if len(self.word or "") < _LONGEST:  # a longer one is neither a command nor an option
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
    """Quote a word as oci.conf(5) does for `%@`: always with single quotes."""
    return "'" + argument.replace("'", "'\"'\"'") + "'"


_CLASSES = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "blank": r" \t", "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9", "graph": r"!-~", "lower": "a-z", "print": r" -~",
    "punct": r"!-/:-@\[-`{-~", "space": r" \t\n\r\f\v", "upper": "A-Z", "xdigit": "0-9a-fA-F",
}  # fmt: skip


def extended(expression: str) -> re.Pattern[str]:
    """Compile an extended regular expression of POSIX; only its classes differ from Python's."""
    known = "|".join(_CLASSES)
    text = re.sub(rf"\[:({known}):\]", lambda found: _CLASSES[found[1]], expression)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `[[` may mean a set of sets one day
            return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise SettingsError(f"{expression}: is not a regular expression: {error}") from None


def without(environment: Mapping[str, str], expression: str | None) -> dict[str, str]:
    """Return the variables whose `NAME=VALUE` does not match; all of them for None."""
    if expression is None:
        return dict(environment)
    excluded = extended(expression)
    return {
        name: value
        for name, value in environment.items()
        if not excluded.search(f"{name}={value}")
    }
