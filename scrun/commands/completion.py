"""scrun completion: print the script by which a shell completes scrun's command line.

scrun(1) says where to put it. It asks the scrun on the command line (`scrun.commands.complete`).

Errors: UsageError, for another shell.
"""

from scrun.cli.completion.scripts import SCRIPTS
from scrun.cli.parse import Parsed
from scrun.core.errors import UsageError
from scrun.core.output import write


def run(parsed: Parsed, argv: list[str]) -> int:
    """Print it on standard output.

    Raises:
        UsageError: There is no script for that shell.
    """
    del argv
    shell = parsed.operands[0]
    if shell not in SCRIPTS:
        raise UsageError(f"no completion for {shell!r}, only {', '.join(SCRIPTS)}")
    write(SCRIPTS[shell].encode())
    return 0
