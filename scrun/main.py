"""The entry point of the Python program, which does every command.

The client in C (`scrun/native`) does most calls of engines alone. What it is not sure of comes
here, perhaps with what it has done already (`go_on`). Without a compiler this is all
there is: so this module and what it imports use built-in modules only; what needs others is
imported where it is used.
"""

import posix
import sys

from scrun.cli.failure import explain
from scrun.cli.parse import parse
from scrun.client.ask import forward, go_on
from scrun.core.errors import UsageError

_FORWARDED = ("state", "start", "kill", "delete", "pause", "resume")
_HANDED = frozenset(("answered", "failed", "again", "lost", "untaken", "stays", "left", "gone"))
_MODULES = {
    "checkpoint": "unsupported", "restore": "unsupported", "shell": "exec",
    "doctor": "programs", "lua": "programs", "plugins": "programs",
    "usage": "help", "version": "help",
}  # fmt: skip


def main() -> "None":
    """Run the command of `sys.argv`; does not return.

    It ends with `posix._exit`: there is nothing to flush or join, and the interpreter's own way
    out takes a millisecond.
    """
    try:
        _open_closed_descriptors()
        status = run(sys.argv[1:])
    except KeyboardInterrupt as signal:
        status = getattr(signal, "status", 130)  # of `scrun.pull.interrupts`
    posix._exit(status)


def _open_closed_descriptors() -> None:
    """Open /dev/null for standard input, output or error if it is closed.

    Else the container would get the next file that is opened, as that has this number.
    """
    while (fd := posix.open("/dev/null", posix.O_RDWR)) <= 2:
        posix.set_inheritable(fd, True)
    posix.close(fd)


def run(argv: "list[str]") -> int:
    parsed = None
    try:
        if argv[:1] == ["__complete"]:
            from scrun.commands.completion import offer

            return offer(argv[1:])
        try:
            parsed = parse(argv)
        except UsageError as error:
            if error.left is None:
                raise
            from scrun.client.plugin_options import parse_again

            parsed = parse_again(argv, error)
        if not _HANDED.isdisjoint(sys._xoptions):
            return go_on(parsed)
        if parsed.command in _FORWARDED:
            if parsed.options.get("regex") or (parsed.command == "delete" and parsed.operands):
                from scrun.client.find import forward_each

                return forward_each(parsed)
            return forward(parsed)
        if parsed.command == "run" and parsed.operands:
            from scrun.commands.run_alike import run as run_alike

            return run_alike(parsed)
        return _module(parsed.command).run(parsed)  # type: ignore[attr-defined, no-any-return]
    except Exception as error:
        return explain(error, parsed)


def _module(command: str) -> object:
    """Import the module that carries a command out: of the command's name, or as in the table."""
    name = _MODULES.get(command) or command.replace("-", "_")
    package = __import__("scrun.commands", fromlist=[name])
    __import__("scrun.commands." + name)
    return getattr(package, name)
