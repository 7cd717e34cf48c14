"""scrun doctor, lua and plugins: a program of the supervisor's takes this process's place.

They need engines, stagers or scripts, but keep no container: `supervisor.programs` has the work.

Errors: UsageError for a `lua` that cannot be meant; else those of the program.
"""

import os
import sys

from scrun.cli.parse import Parsed
from scrun.client.program import program
from scrun.core.errors import UsageError

_PROGRAMS = {"doctor": "doctor.main", "lua": "lua_trial", "plugins": "plugins_list"}


def run(parsed: Parsed, argv: "list[str]") -> int:
    """Become the program.

    Args:
        parsed: The parsed command line.
        argv: The same as it came; the program reads it again, with the same table.

    Raises:
        UsageError: The command line has no meaning.
    """
    command = parsed.command
    if command == "lua":
        action = parsed.operands[0]
        if action not in ("check", "run"):
            raise UsageError(f"lua cannot {action!r}, only check or run: see 'scrun lua --help'")
        if action == "check" and {"bundle", "config", "stage-out"} & parsed.options.keys():
            raise UsageError("lua check takes no bundle: it only loads the script")
    words = program(_PROGRAMS[command], argv, undoes_nothing=command != "lua")
    os.execv(sys.executable, words)
    raise AssertionError("unreachable")
