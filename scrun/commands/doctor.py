"""scrun doctor: check whether containers can run here, and say what to do.

One line for each thing that is looked at: `ok`, `warn` or `fail`, what was found, and the remedy.
The exit status is 1 when anything failed. The work is the supervisor's (`supervisor.doctor.main`),
in a program of its own that takes this one's place: it needs the engines, and no container is to
be kept.

Wire: nothing; but the test container is made by a `create` as any other.
"""

import os
import sys

from scrun.cli.parse import Parsed

# until the event loop listens there is nothing to undo, and a traceback would be no answer to ^C
_PROGRAM = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "sys.path.insert(0, sys.argv.pop(1)); from supervisor.doctor.main import main; "
    "sys.exit(main(sys.argv[1:]))"
)


def run(parsed: Parsed, argv: list[str]) -> int:
    """Become the program that does it.

    Args:
        parsed: The parsed command line.
        argv: The same as it came; the program reads it again, with the same table.
    """
    del parsed
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    site = ["-S"] if sys.flags.no_site else []
    os.execv(sys.executable, [sys.executable, "-I", *site, "-c", _PROGRAM, package, *argv])
    raise AssertionError("unreachable")
