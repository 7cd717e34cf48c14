"""Reads the command lines of srun and sbatch, as far as finding their command needs it.

Which options there are, and which take an argument, the tool's own `--help` says (`known`). Of a
long option that neither that nor this module knows it is assumed that it takes one: most do.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

from scrun.core.errors import UsageError

SHORT = {
    "A": "account", "B": "extra-node-info", "C": "constraint", "D": "chdir", "F": "nodefile",
    "G": "gpus", "J": "job-name", "L": "licenses", "M": "clusters", "N": "nodes",
    "S": "core-spec", "T": "threads", "W": "wait", "a": "array", "b": "begin",
    "c": "cpus-per-task", "d": "dependency", "e": "error", "i": "input", "m": "distribution",
    "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "r": "relative", "t": "time",
    "w": "nodelist", "x": "exclude",
}  # fmt: skip
"""Short options with an argument."""

_SHORT_FLAGS = {
    "E": "preserve-env", "H": "hold", "I": "immediate", "K": "kill-on-bad-exit", "O": "overcommit",
    "Q": "quiet", "V": "version", "X": "disable-status", "Z": "no-allocate",
    "h": "help", "k": "no-kill", "l": "label", "s": "oversubscribe", "u": "unbuffered",
    "v": "verbose",
}  # fmt: skip
# their argument, if any, stands behind an equals sign
_FLAGS = frozenset(
    (
        *_SHORT_FLAGS.values(), "contiguous", "debugger-test", "exact", "exclusive",
        "get-user-env", "ignore-pbs", "interactive", "multi-prog", "nice", "no-requeue", "overlap",
        "parsable", "propagate", "pty", "quit-on-interrupt", "reboot", "requeue", "resv-ports",
        "send-libs", "spread-job", "test-only", "usage", "use-min-nodes", "wait-all-nodes",
        "whole", "x11", "container-mount-home", "no-container-mount-home", "container-remap-root",
        "no-container-remap-root", "container-entrypoint", "no-container-entrypoint",
        "container-entrypoint-log", "container-writable", "container-readonly",
    )
)  # fmt: skip


# they are listed without their argument, or as if it could be left out
_WITH_ARGUMENT = ("container", "export", "wrap")
_LISTED = re.compile(r"^ {2,8}(?:-(\w),? +| {4})--([a-z][a-z0-9-]*)(\[?)(=?)", re.MULTILINE)


def known(help_text: str) -> dict[str, tuple[str, bool]]:
    """Return the options that a tool's `--help` lists.

    Returns:
        For each its letter, or "", and whether the next word is its argument.
    """
    found: dict[str, tuple[str, bool]] = {}
    for letter, name, bracket, equals in _LISTED.findall(help_text):
        takes = (bool(equals) and not bracket) or name in _WITH_ARGUMENT
        found.setdefault(name, (letter, takes))
    return found


class Word(msgspec.Struct, frozen=True):
    """An option of a command line.

    Attributes:
        name: Its long name; of an unknown short one, its letter.
        value: Its argument; None without one.
        words: As it was written.
    """

    name: str
    value: str | None
    words: tuple[str, ...]


def read(
    arguments: Sequence[str],
    *,
    batch: bool = False,
    listed: Mapping[str, tuple[str, bool]] | None = None,
) -> tuple[list[Word], list[str]]:
    """Split a command line into options and the command.

    `batch` says whether it is one of sbatch, where `--wait` has no argument. `listed` are the
    tool's options, as `known` returns them.

    Raises:
        UsageError: The last option lacks its argument.
    """
    found: list[Word] = []
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word == "--":
            return found, list(arguments[position + 1 :])
        if len(word) < 2 or word[0] != "-":
            break
        position += 1
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = _whole(name, listed or {})
            takes = not equals and _takes(name, listed or {})
            given = value if equals else None
        else:
            name, takes, given = _short(word, listed or {})
        if batch and name == "wait":
            takes = False
        words: tuple[str, ...] = (word,)
        if takes:
            if position == len(arguments):
                raise UsageError(f"option {word} needs a value")
            given, words = arguments[position], (word, arguments[position])
            position += 1
        found.append(Word(name, given, words))
    return found, list(arguments[position:])


def _takes(name: str, listed: Mapping[str, tuple[str, bool]]) -> bool:
    return listed[name][1] if name in listed else name not in _FLAGS


def _whole(name: str, listed: Mapping[str, tuple[str, bool]]) -> str:
    """Complete the beginning of a long option, as getopt_long(3) does."""
    if name in listed or not listed or name in _FLAGS or name.startswith(("container", "no-cont")):
        return name
    found = [one for one in listed if one.startswith(name)]
    return found[0] if len(found) == 1 else name


def _short(word: str, listed: Mapping[str, tuple[str, bool]]) -> tuple[str, bool, str | None]:
    """Read a short option: its name, whether the next word is its argument, else that."""
    letter, rest = word[1], word[2:]
    name = next((name for name, (short, _) in listed.items() if short == letter), "")
    if name in listed and listed[name][1]:
        return name, not rest, rest.removeprefix("=") or None
    if not name and letter in SHORT:
        return SHORT[letter], not rest, rest.removeprefix("=") or None
    name = name or _SHORT_FLAGS.get(letter, letter)
    return name, False, rest.removeprefix("=") or None
