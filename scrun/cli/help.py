"""The texts of ``--help``, ``--usage`` and ``--version``, made from the grammar's table."""

from scrun.cli.grammar import COMMANDS, IMAGES, Option, options_of
from scrun.core.errors import UsageError
from scrun.core.version import SPEC, VERSION

# where the right column begins, beside options and beside commands
_OPTIONS, _COMMANDS = 30, 14
_WIDTH, _FURTHER = 80, "\n           "


def help_text(topic: str | None = None) -> str:
    """Return the help for a command; for None the commands and the global options."""
    if topic is None:
        commands = [_row(f"  {name}", entry[0], _COMMANDS) for name, entry in COMMANDS.items()]
        return _lines(
            "Usage: scrun [GLOBAL OPTIONS...] COMMAND [OPTIONS...] [OPERANDS...]",
            "",
            "Run OCI containers as Slurm jobs, or on this machine.",
            "",
            "Commands:",
            *commands,
            "",
            "Global options:",
            *_options(None),
            "",
            "See 'scrun COMMAND --help' for the options of a command.",
        )
    return usage_text(topic) + _lines(
        "",
        f"{COMMANDS[topic][0]}.",
        "",
        "Options:",
        *_options(topic),
        "",
        "See 'scrun --help' for the global options.",
    )


def plugins_text(options: "list[Option]") -> str:
    """Return the part of a command's help about options of a site's scripts; "" without any."""
    if not options:
        return ""
    return _lines("", "Options provided by plugins:", *map(_option, options))


def usage_text(topic: str | None = None) -> str:
    """Return the synopsis of a command, or for None of all; each on one line if it fits."""
    if topic is not None and topic not in COMMANDS:
        raise UsageError(f"unknown command {topic!r}: see 'scrun --help'")
    names = COMMANDS if topic is None else (topic,)
    forms = [form for name in names for form in _synopses(name)]
    return _lines(*(f"{'       ' if i else 'Usage: '}{form}" for i, form in enumerate(forms)))


def version_text() -> str:
    """Return the two lines with which crun and runc begin; engines read them."""
    return _lines(f"scrun version {VERSION}", f"spec: {SPEC}")


def _synopses(name: str) -> list[str]:
    operands = COMMANDS[name][1]
    return [_synopsis(name, operands)] + ([_synopsis(name, (IMAGES,))] if name == "run" else [])


def _synopsis(name: str, operands: tuple[str, ...]) -> str:
    own = [f"[{name.upper()} OPTIONS]"] if COMMANDS[name][2] else []
    begin, rest = " ".join(["scrun [GLOBAL OPTIONS...]", name, *own]), " ".join(operands)
    fits = len(f"Usage: {begin} {rest}") <= _WIDTH
    return f"{begin}{' ' if fits else _FURTHER}{rest}".rstrip()


def _options(topic: str | None) -> list[str]:
    return [_option(option) for option in options_of(topic)]


def _option(option: Option) -> str:
    name, letters, metavar, used, _, text = option
    short = "".join(f"-{letter}, " for letter in letters)
    if metavar is None:
        value = ""
    elif metavar[0] == "[":
        value = f"[={metavar[1:]}"
    else:
        value = f"={metavar}"
    return _row(f"  {short:>4}--{name}{value}", text if used else f"{text} (ignored)", _OPTIONS)


def _row(left: str, right: str, column: int) -> str:
    """Put the right column beside the left one, or below when that is too long."""
    if len(left) > column - 2:
        return f"{left}\n{'':{column}}{right}"
    return f"{left:{column}}{right}"


def _lines(*lines: str) -> str:
    return "\n".join(lines) + "\n"
