"""The entry point: forwards the frequent operations without one heavy import.

An engine calls `create`, `start`, `kill` and `delete` for each container, and a bare interpreter
is most of what such a call costs; so this module and what it imports get by with built-in
modules. Everything else (help, errors, a supervisor that is not there) is imported where it is
needed, by name.
"""

import os
import sys

from scrun.cli.parse import parse
from scrun.client.ask import forward
from scrun.core.errors import UsageError

_FORWARDED = ("state", "start", "kill", "delete", "pause", "resume")
_MODULES = {
    "checkpoint": "unsupported", "restore": "unsupported", "shell": "exec",
    "doctor": "programs", "lua": "programs", "plugins": "programs",
    "usage": "help", "version": "help",
}  # fmt: skip


def main() -> "None":
    """Run the command of `sys.argv`; does not return.

    The interpreter's own way out is passed over (`os._exit`): with nothing to flush or join it
    is a millisecond of every call.
    """
    try:
        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = 130
    os._exit(status)


def run(argv: "list[str]") -> int:
    """Run one command and return its exit status."""
    parsed = None
    try:
        try:
            parsed = parse(argv)
        except UsageError as error:
            if error.left is None:
                raise
            from scrun.client.plugin_options import parse_again

            argv, parsed = parse_again(argv, error)
        if parsed.command in _FORWARDED:
            return forward(parsed)
        return _module(parsed.command).run(parsed, argv)  # type: ignore[attr-defined, no-any-return]
    except Exception as error:
        from scrun.cli.failure import explain

        return explain(error, parsed)


def _module(command: str) -> object:
    """Import what carries a command out: the module of that name, or the one in the table."""
    name = _MODULES.get(command) or command.replace("-", "_")
    package = __import__("scrun.commands", fromlist=[name])
    __import__("scrun.commands." + name)
    return getattr(package, name)
