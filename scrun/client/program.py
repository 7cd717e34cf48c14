"""Command lines of the programs in `scrun.supervisor.programs`, which some commands run."""

import os
import sys

from scrun.cli.grammar import GLOBAL
from scrun.cli.parse import Parsed, as_words
from scrun.core.paths import python_code

_TEXT = (
    "from scrun.supervisor.programs.{} import run; "
    "from scrun.supervisor.programs.main import main; sys.exit(main(run, sys.argv[1:]))"
)
# until the event loop handles it, ^C would print a traceback
_QUIET = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "


def program(module: str, argv: list[str], *, undoes_nothing: bool = False) -> list[str]:
    """Return the command line of a module of `scrun.supervisor.programs` that has a `run`.

    It parses `argv`, scrun's arguments, again. `undoes_nothing`: SIGINT may end it at once.
    """
    quiet = _QUIET if undoes_nothing else ""
    return python_code(quiet + _TEXT.format(module), *argv)


def words_of(parsed: Parsed) -> list[str]:
    """Return the words that call scrun with the same global options."""
    return [os.path.abspath(sys.argv[0]), *as_words(GLOBAL, parsed)]
