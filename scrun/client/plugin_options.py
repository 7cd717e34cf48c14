"""The options of `create` and `run` that scripts of plugstack.conf register.

Only the scripts know them, and they run in a program of their own
(`supervisor.programs.spank_scripts`). It is started when somebody types an option that is not in
the grammar, or asks for help; no other call pays for it.

Each option becomes an environment variable of the request, SCRUN_OPTION_NAME
(`scrun.settings.spank.plugstack`): the supervisor reads options from there only.
"""

import json
import os
import subprocess

from scrun.cli.grammar import Option
from scrun.cli.parse import Parsed, parse
from scrun.client.program import program
from scrun.core.errors import SpankError, UsageError
from scrun.settings.file.load import load, merge
from scrun.settings.spank.plugstack import find_plugstack, variable_of

COMMANDS = ("create", "run")
"""The commands that take such options."""

_GLOBAL = ("config-file", "slurm-conf", "engine")
_PATIENCE = 60


def parse_again(argv: list[str], error: UsageError) -> Parsed:
    """Move the options of scripts from a command line to the environment, and parse the rest."""
    options: list[Option] | None = None
    while True:
        if error.left is None:
            raise error
        if options is None:
            options = list_options(error.options or {})
        argv = _without(argv, len(argv) - error.left - 1, options, error)
        try:
            return parse(argv)
        except UsageError as another:
            error = another


def _without(argv: list[str], index: int, options: list[Option], error: UsageError) -> list[str]:
    name, equals, value = argv[index][2:].partition("=")
    metavar = next((option[2] for option in options if option[0] == name), error)
    if metavar is error:
        raise error
    after = index + 1
    if metavar is None and equals:
        raise UsageError(f"option --{name} takes no value, got {value!r}")
    if isinstance(metavar, str) and metavar[0] != "[" and not equals:
        if after == len(argv):
            raise UsageError(f"option --{name} needs a value, {metavar}")
        value = argv[after]
        after += 1
    os.environ[variable_of(name)] = value
    return argv[:index] + argv[after:]


def list_options(given: dict[str, object]) -> list[Option]:
    """List the options that scripts have registered, in the form of the grammar's table."""
    words = [f"--{name}={given[name]}" for name in _GLOBAL if isinstance(given.get(name), str)]
    if not _has_scripts(words):
        return []
    argv = program("spank_scripts", [*words, "version"])
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise SpankError(f"the scripts of plugstack.conf take longer than {_PATIENCE} s") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise SpankError(
            lines[-1].removeprefix("scrun: ")
            if lines
            else "the scripts of plugstack.conf cannot be run to list their options"
        )
    return [_option(entry) for entry in json.loads(done.stdout)]


def _has_scripts(words: list[str]) -> bool:
    options = parse([*words, "version"])
    settings = load(os.environ, options.text("config-file"))
    conf = options.text("slurm-conf")
    named = {"slurm.conf": os.path.abspath(conf)} if conf else {}
    return find_plugstack(merge(settings, options=named, env=os.environ)) is not None


def _option(entry: dict[str, object]) -> Option:
    takes, called = entry["takes"], str(entry["argument"] or "VALUE")
    metavar = None if takes == 0 else called if takes == 1 else f"[{called}]"
    return str(entry["name"]), "", metavar, True, False, str(entry["usage"])
