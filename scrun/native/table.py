"""What the client in C knows of the command line: a header, made of the grammar's own table.

An option that the client does not know, or that is marked as one for which it steps aside, is the
Python program's.
"""

from scrun.cli.grammar import COMMANDS, GLOBAL, Option, options_of

SERVED = ("create", "start", "state", "kill", "delete", "pause", "resume", "exec")
"""The commands that the client carries out, in the order of its `enum command`."""

ASIDE = frozenset(
    {
        *("help", "usage", "version"),  # whole texts
        "regex",  # several containers
        *("console-socket", "tty"),  # terminals
        "preserve-fds",
    }
)


def header() -> str:
    """Return the text of `table.h`."""
    lines = ["/* Made by scrun/native/table.py. */", *_options("GLOBAL", GLOBAL)]
    for name in SERVED:
        lines += _options(f"OF_{name.upper()}", options_of(name))
    lines.append("static const struct known KNOWN[] = {")
    for name in SERVED:
        operands = COMMANDS[name][1]
        open_ended = operands[-1].endswith("...]")
        # more ids than one are the Python program's
        most = sum(not word.endswith("]...") for word in operands)
        lines.append(f'\t{{"{name}", OF_{name.upper()}, {most}, {str(open_ended).lower()}}},')
    return "\n".join([*lines, "};", ""])


def _options(name: str, options: tuple[Option, ...]) -> list[str]:
    lines = [f"static const struct option {name}[] = {{"]
    for long, letters, metavar, used, _, _ in options:
        value = "NULL" if metavar is None else f'"{metavar if used else metavar.strip("|")}"'
        if metavar is not None and not used and "|" in metavar and metavar[0] != "[":
            value = '"VALUE"'  # of what is ignored any value is right
        aside = str(long in ASIDE).lower()
        lines.append(f'\t{{"{long}", "{letters}", {value}, {aside}}},')
    return [*lines, "\t{NULL, NULL, NULL, false},", "};"]
