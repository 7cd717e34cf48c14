"""Parse the command line, by the table in ``grammar``.

The forms are those of getopt_long and argp (crun, Slurm) and of Go's flag package
(runc) together: ``--name=value``, ``--name value``, ``-nvalue``, ``-n value``,
``-n=value``, ``-name value``, clusters, ``--flag=false``, ``--``. Global options stand
before the command; those of the command before or after its operands.

Every call of scrun pays for its imports, so it imports little.
"""

from scrun.cli.grammar import (
    COMMANDS,
    CONTAINER,
    MORE_CONTAINERS,
    PERHAPS_CONTAINER,
    Option,
    is_image,
    options_of,
)
from scrun.core.errors import UsageError, hint
from scrun.oci.ids import check_id

# as strconv.ParseBool, which runc's --flag=value goes through
_TRUE = ("1", "t", "T", "true", "True", "TRUE")
_OPEN = ("create", "run")  # a site's scripts may have more options for them
_FALSE = ("0", "f", "F", "false", "False", "FALSE")
_PODMANS = ("--rm", "-i", "-it", "--interactive", "--tty")  # what `run IMAGE` does anyhow


class Parsed:
    """A parsed command line.

    Attributes:
        argv: All of it, as it was given; the supervisor parses it again.
        command: A name in the table, in lower case. An option that asks for help becomes
            the command ``help``, ``usage`` or ``version``, with the topic as its operand.
        options: By long name, global ones and those of the command: True for a flag, the
            count for a flag that may be repeated, a list for another option that may be
            repeated, else its value. An option with an optional value may also be True.
        id: The container's id, checked; None for a command without one, and for `run IMAGE`.
        operands: The operands after the id, for `delete` more ids; those of `run IMAGE` begin
            with the image.
    """

    def __init__(self) -> None:
        self.argv: list[str] = []
        self.command = ""
        self.options: dict[str, object] = {}
        self.id: str | None = None
        self.operands: list[str] = []

    def __repr__(self) -> str:
        return f"<Parsed {self.command} {self.id} {self.operands} {self.options}>"

    def text(self, name: str) -> str | None:
        value = self.options.get(name)
        return value if isinstance(value, str) else None

    def texts(self, name: str) -> list[str]:
        value = self.options.get(name)
        return [str(item) for item in value] if isinstance(value, list) else []

    def count(self, name: str) -> int:
        """Return how often a flag was given: 0, 1, or more for one that may be repeated."""
        value = self.options.get(name)
        return value if isinstance(value, int) else 0


def parse(argv: list[str]) -> Parsed:
    """Read a command line; UsageError has the options read so far, for ``--log``."""
    parsed = Parsed()
    parsed.argv = argv
    try:
        _read(argv, parsed)
    except UsageError as error:
        error.options = parsed.options
        raise
    return parsed


def as_words(options: tuple[Option, ...] | list[Option], parsed: Parsed) -> list[str]:
    """Return options that were given as words of a command line."""
    found = []
    for name, *_ in options:
        value = parsed.options.get(name)
        if isinstance(value, str):
            found.append(f"--{name}={value}")
        elif value is not None:
            found += [f"--{name}"] * (value if isinstance(value, int) else 1)
    return found


def _read(argv: list[str], parsed: Parsed) -> None:
    operands = _scan(argv, None, parsed)
    if parsed.command:
        return
    if not operands:
        raise UsageError("no command given" + _see(None))
    command = _known(operands[0])
    operands = _scan(operands[1:], command, parsed)
    if parsed.command:
        return
    parsed.command = command

    if operands and is_image(command, operands[0]):
        parsed.operands = operands
        return
    wanted = COMMANDS[command][1]
    given, needed = len(operands), sum(word[0] == "<" for word in wanted)
    if given < needed:
        raise UsageError(f"{command} needs a {wanted[given].strip('<>')}" + _see(command))
    if given > len(wanted) and not (wanted and wanted[-1].endswith(("...]", "]..."))):
        raise UsageError(f"unexpected argument {operands[len(wanted)]!r}" + _see(command))
    is_id = wanted[:1] in ((CONTAINER,), (PERHAPS_CONTAINER,)) and not parsed.options.get("regex")
    if operands and is_id:
        parsed.id = check_id(operands.pop(0))
        if wanted[-1] == MORE_CONTAINERS:
            operands = [*map(check_id, operands)]
    elif command == "help":
        operands = [_known(topic) for topic in operands]
    parsed.operands = operands


def _scan(arguments: list[str], command: str | None, parsed: Parsed) -> list[str]:
    """Store the options, return the operands; stop at one that asks for help, now the command."""
    options = options_of(command)
    in_order = command is None or open_ended(COMMANDS[command][1])
    operands: list[str] = []
    rest = arguments[::-1]  # a stack: the next argument is its last
    while rest:
        argument = rest.pop()
        if argument == "--":
            break
        if len(argument) < 2 or argument[0] != "-":
            operands.append(argument)
            if in_order or is_image(command, argument):
                break
            continue
        found = resolve(argument, options)
        if found is None:
            operands.append(_signal_or_raise(argument, command, operands, len(rest)))
            continue
        for option, value in found:
            _store(option, value, rest, command, parsed.options)
            if option[0] in ("help", "usage", "version") and parsed.options.pop(option[0], None):
                parsed.command = option[0]
                parsed.operands = [command] if command else []
                return []
    return operands + rest[::-1]


def resolve(argument: str, options: tuple[Option, ...]) -> list[tuple[Option, str | None]] | None:
    """Find the options in one argument, with their values; None when it cannot be an option.

    A long name may have one dash, as in Go. It takes precedence over a cluster, else runc's
    ``-bundle DIR`` would be ``-b undle``.
    """
    double = argument[1] == "-"
    text = argument[2:] if double else argument[1:]
    name, equals, value = text.partition("=")
    for option in options:
        if option[0] == name:
            return [(option, value if equals else None)]
    if double:
        return None

    found: list[tuple[Option, str | None]] = []
    while text:
        letter, text = text[0], text[1:]
        for option in options:
            if letter in option[1]:
                break
        else:
            return None
        if text and (option[2] is not None or text[0] == "="):
            found.append((option, text.removeprefix("=")))
            break
        found.append((option, None))
    return found


def _store(
    option: Option,
    value: str | None,
    rest: list[str],
    command: str | None,
    into: dict[str, object],
) -> None:
    """Store one option; take the next argument if the option needs it."""
    name, _, metavar, used, many, _ = option
    before = into.get(name)
    if metavar is None:
        if value in _FALSE:
            into.pop(name, None)
        elif value is not None and value not in _TRUE:
            raise UsageError(f"option --{name} takes no value, got {value!r}" + _see(command))
        elif many:
            into[name] = before + 1 if isinstance(before, int) else 1
        else:
            into[name] = True
        return

    choices = metavar.strip("[]").split("|")
    if value is None and metavar[0] == "[":
        listed = bool(rest) and (rest[-1].isdigit() if choices == ["N"] else rest[-1] in choices)
        if not listed:
            into[name] = True
            return
    if value is None:
        if not rest:
            raise UsageError(f"option --{name} needs a value, {metavar}" + _see(command))
        value = rest.pop()
    if used and len(choices) > 1 and value not in choices:
        raise UsageError(
            f"option --{name} cannot be {value!r}, only {' or '.join(choices)}" + _see(command)
        )
    if command == "run" and name == "time" and not _limits(value):
        words = "only a limit such as 90 or 1-12:30:00; for a terminal leave '-t' out"
        raise UsageError(f"option --time cannot be {value!r}, {words}" + _see(command))
    if many:
        into[name] = [*before, value] if isinstance(before, list) else [value]
    else:
        into[name] = value


def _signal_or_raise(argument: str, command: str | None, operands: list[str], left: int) -> str:
    """Return the signal of ``kill ID -9`` or ``kill ID -KILL``, as in kill(1); else raise."""
    if command == "kill" and len(operands) == 1:
        from scrun.oci.signals import parse_signal

        try:
            parse_signal(argument[1:])
        except UsageError:
            pass  # an unknown option, then
        else:
            return argument[1:]
    name = argument.partition("=")[0]
    if command is not None and resolve(argument, options_of(None)) is not None:
        raise UsageError(f"option {name!r} must stand before {command!r}" + _see(None))
    if command == "run" and argument in _PODMANS:
        near = "; leave it out, 'scrun run' does so by itself"
    else:
        words = ["--" + option[0] for option in options_of(command)]
        near = hint(name, words) if name[:2] == "--" else ""
    error = UsageError(f"unknown option {name!r}" + near + _see(command))
    if command in _OPEN and name[:2] == "--":
        error.left = left
    raise error


def _limits(value: str) -> bool:
    """Tell whether this looks like a time limit of Slurm's, not like the name of an image."""
    digits = value.replace(":", "").replace("-", "")
    return (digits.isascii() and digits.isdigit()) or value.upper() in ("INFINITE", "UNLIMITED")


def _known(word: str) -> str:
    command = word.lower()
    if command not in COMMANDS:
        raise UsageError(f"unknown command {word!r}" + hint(command, COMMANDS) + _see(None))
    return command


def open_ended(wanted: tuple[str, ...]) -> bool:
    """Tell whether options end at the first operand, as in `exec ID COMMAND ARGUMENT...`."""
    return bool(wanted) and wanted[-1].endswith("...]")


def _see(command: str | None) -> str:
    return f": see 'scrun {command} --help'" if command else ": see 'scrun --help'"


def typed_settings(parsed: Parsed, here: str) -> dict[str, str]:
    """Return what a command line says of the engine, the stager and slurm.conf."""
    typed = {name: parsed.text(name) or "" for name in ("engine", "stager", "slurm-conf")}
    if conf := typed.pop("slurm-conf"):
        typed["slurm.conf"] = conf if conf[0] == "/" else f"{here}/{conf}"
    return {name: value for name, value in typed.items() if value}


def record_root(parsed: Parsed) -> str:
    """Return the root directory of the records, from `--root`, the settings or the default."""
    given = parsed.options.get("root")
    if isinstance(given, str):
        if given[:1] == "/" and "//" not in given and "/." not in given and given[-1] != "/":
            return given
        import os  # a sixth of the whole command

        return os.path.abspath(given)
    from scrun.settings.file.sources import default_root, environment

    return default_root(environment(), setting(parsed, "root"))


def setting(parsed: Parsed, key: str) -> "str | None":
    """Look up one of the settings that decide where to ask: `root` or `group`."""
    from scrun.settings.file.sources import environment, recall

    given = parsed.options.get("config-file")
    config_file = given if isinstance(given, str) else None
    root = environment().get("SCRUN_ROOT", "") if key == "root" else ""
    if root[:1] == "/":
        return root
    found = None if root else recall(environment(), config_file)
    if found is None:
        from scrun.settings.file.load import load_and_remember

        found = load_and_remember(environment(), config_file)
    return found.get(key)
