"""Analyze a site's shell commands without running them. Pure."""

import re
import shlex

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
    """Put `exec` before a simple command, so that the shell is replaced by it.

    Not every shell does that itself (Debian's does not), and a signal would then only end the
    shell.
    """
    first = re.match(r"\s*([\w/][\w./+-]*)(?:\s|$)", pattern)
    simple = not set(_INNER.sub("", pattern)) & set(";&|<>(){}`\n\\\"'")
    if first is None or first[1] in _BUILT_IN or not simple:
        return pattern
    return f"exec {pattern.lstrip()}"


def portable(command: str) -> str:
    """Remove SIG from the names of signals for kill(1).

    POSIX has no SIG there, and some shells refuse it ("invalid signal number or name: SIGTERM").
    The examples in Slurm's documentation have it.
    """
    return _PREFIXED.sub(r"\1", command)


def program_of(pattern: str) -> str | None:
    """Return the program that a command of oci.conf runs; None if only a shell could tell."""
    try:
        words = shlex.split(pattern)
    except ValueError:
        return None
    while words and (words[0] == "exec" or re.fullmatch(r"\w+=.*", words[0])):
        words.pop(0)
    plain = words and re.fullmatch(r"[\w./+-]+", words[0])
    return words[0] if plain else None
