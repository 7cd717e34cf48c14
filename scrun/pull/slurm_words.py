"""Reads the command lines of srun and sbatch, as far as finding their command needs it.

Of a long option that is not known here it is assumed that it takes an argument: most do.
"""

from collections.abc import Sequence

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


def read(arguments: Sequence[str], *, batch: bool = False) -> tuple[list[Word], list[str]]:
    """Split a command line into options and the command.

    Args:
        arguments: The command line, without the program.
        batch: Whether it is one of sbatch, where `--wait` has no argument.

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
            takes = not equals and name not in _FLAGS
            given = value if equals else None
        else:
            name, takes, given = _short(word)
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


def _short(word: str) -> tuple[str, bool, str | None]:
    """Read a short option: its name, whether the next word is its argument, else that."""
    letter, rest = word[1], word[2:]
    if letter in SHORT:
        return SHORT[letter], not rest, rest.removeprefix("=") or None
    return _SHORT_FLAGS.get(letter, letter), False, rest.removeprefix("=") or None
