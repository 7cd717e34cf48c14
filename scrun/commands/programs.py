"""scrun doctor, lua and plugins: replace this process by a program of `supervisor.programs`.

They need engines, stagers or scripts of the supervisor's code, but serve no container.
"""

import os
import sys

from scrun.cli.parse import Parsed
from scrun.client.program import program
from scrun.core.errors import UsageError

_PROGRAMS = {"doctor": "doctor.main", "lua": "lua_trial", "plugins": "plugins_list"}


def run(parsed: Parsed) -> int:
    command = parsed.command
    if command == "lua":
        action = parsed.operands[0]
        if action not in ("check", "run"):
            raise UsageError(
                f"unknown action {action!r}: use check or run: see 'scrun lua --help'"
            )
        if action == "check" and {"bundle", "config", "stage-out"} & parsed.options.keys():
            raise UsageError("lua check takes no bundle: it only loads the script")
    words = program(_PROGRAMS[command], parsed.argv, undoes_nothing=command != "lua")
    os.execv(sys.executable, words)
    raise AssertionError("unreachable")
