"""scrun shell: an interactive shell in a running container, the best one found there.

It is `exec --tty` of that shell; see `scrun.commands.exec` for the wire and the errors.
"""

import os

from scrun.cli.parse import Parsed
from scrun.commands import exec as execution


def run(parsed: Parsed, argv: "list[str]") -> int:
    """Open the shell, and stay with it.

    Raises:
        ScrunError: There is none, or the container does not run.
    """
    given = parsed.texts("env")
    if (term := os.environ.get("TERM")) and not any(entry.startswith("TERM=") for entry in given):
        # the supervisor reads argv again; options stand before the operands
        place = argv.index(parsed.command) + 1 if parsed.command in argv else len(argv)
        argv = [*argv[:place], "--env", f"TERM={term}", *argv[place:]]
    return execution.run(parsed, argv)
