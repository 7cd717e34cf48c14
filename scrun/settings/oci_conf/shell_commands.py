"""What can be known of a site's command for a shell without running it. Pure."""

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


def program_of(pattern: str) -> str | None:
    """Return the program that a command of oci.conf runs; None when only a shell could tell."""
    try:
        words = shlex.split(pattern)
    except ValueError:
        return None
    while words and (words[0] == "exec" or re.fullmatch(r"\w+=.*", words[0])):
        words.pop(0)
    plain = words and re.fullmatch(r"[\w./+-]+", words[0])
    return words[0] if plain else None
