"""The programs of the supervisor's that commands run: in their own place, or beside them."""

import sys

from scrun.core.paths import packages

_TEXT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from scrun.supervisor.programs.{} import run; "
    "from scrun.supervisor.programs.main import main; sys.exit(main(run, sys.argv[1:]))"
)
# until the event loop listens, a traceback would be no answer to ^C
_QUIET = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "


def program(module: str, argv: "list[str]", *, undoes_nothing: bool = False) -> "list[str]":
    """Return the command line of a program.

    Args:
        module: The module of `scrun.supervisor.programs` that has its `run`.
        argv: What scrun was called with; the program reads it again, with the same table.
        undoes_nothing: Nothing is lost if SIGINT ends it at once.
    """
    site = ["-S"] if sys.flags.no_site else []
    text = (_QUIET if undoes_nothing else "") + _TEXT.format(module)
    return [sys.executable, "-I", *site, "-c", text, packages(), *argv]
