"""Commands whose work is the supervisor's, in a program of its own that takes this one's place."""

import os
import sys

from scrun.core.paths import packages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from {} import main; "
    "sys.exit(main(sys.argv[1:]))"
)
# until the event loop listens, a traceback would be no answer to ^C
_QUIET = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "


def become(module: str, argv: "list[str]", *, undoes_nothing: bool = False) -> "NoReturn":
    """Become a program of the supervisor's.

    Args:
        module: Where its `main` is. That gets the command line, and returns the exit status.
        argv: The command line as it came; the program reads it again, with the same table.
        undoes_nothing: Nothing is lost if SIGINT ends it at once.
    """
    package = packages()
    site = ["-S"] if sys.flags.no_site else []
    program = (_QUIET if undoes_nothing else "") + _PROGRAM.format(module)
    os.execv(sys.executable, [sys.executable, "-I", *site, "-c", program, package, *argv])
    raise AssertionError("unreachable")
