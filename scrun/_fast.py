"""The entry point: forwards the frequent operations without a heavy import.

An engine calls `create`, `start`, `kill` and `delete` for each container, and most of the time of
such a call goes into starting the interpreter. So this module and what it imports use built-in
modules only. Everything else (help, errors, a missing supervisor) is imported where it is needed.
"""

import posix
import sys

if sys.flags.no_site:  # to look for empty packages, and in folders, takes a tenth of a `state`
    import _frozen_importlib as _importlib
    import _frozen_importlib_external as _external

    _here = __file__.removesuffix("_fast.py")
    for _name in (
        *("anchor", "cli", "client", "commands", "core", "oci", "protocol", "settings"),
        "settings.file",
    ):
        _package = type(sys)("scrun." + _name)
        _package.__path__ = [_here + _name.replace(".", "/")]
        _above, _, _last = _package.__name__.rpartition(".")
        setattr(sys.modules[_above], _last, sys.modules.setdefault(_package.__name__, _package))

    class _Finder:
        """Finds modules of these packages, without a look at all that is in their folders."""

        @staticmethod
        def find_spec(
            name: str, path: object = None, target: object = None
        ) -> "_importlib.ModuleSpec | None":
            if not name.startswith("scrun."):
                return None
            file = f"{_here}{name.removeprefix('scrun.').replace('.', '/')}.py"
            try:
                posix.stat(file)
            except OSError:
                return None
            return _external.spec_from_file_location(name, file)

    sys.meta_path.insert(0, _Finder)

from scrun.cli.parse import parse
from scrun.client.ask import forward

_FORWARDED = ("state", "start", "kill", "delete", "pause", "resume")
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
        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = 130
    posix._exit(status)


def run(argv: "list[str]") -> int:
    """Run one command and return its exit status."""
    parsed = None
    try:
        if argv[:1] == ["__complete"]:
            return _module("complete").run(argv[1:])  # type: ignore[attr-defined, no-any-return]
        try:
            parsed = parse(argv)
        except Exception as error:
            if getattr(error, "left", None) is None:  # of a UsageError
                raise
            from scrun.client.plugin_options import parse_again

            argv, parsed = parse_again(argv, error)  # type: ignore[arg-type]
        if parsed.command in _FORWARDED:
            return forward(parsed)
        if parsed.command == "run" and parsed.operands:
            from scrun.commands.run_alike import run as run_alike

            return run_alike(parsed, argv)
        return _module(parsed.command).run(parsed, argv)  # type: ignore[attr-defined, no-any-return]
    except Exception as error:
        from scrun.cli.failure import explain

        return explain(error, parsed)


def _module(command: str) -> object:
    """Import the module that carries a command out: of the command's name, or as in the table."""
    name = _MODULES.get(command) or command.replace("-", "_")
    package = __import__("scrun.commands", fromlist=[name])
    __import__("scrun.commands." + name)
    return getattr(package, name)
