"""scrun completion: print the script for command-line completion in a shell.

scrun(1) says where to put it. The script calls the scrun that is being typed
(`scrun.commands.complete`).

Errors: UsageError, for an unknown shell.
"""

from scrun.cli.completion.scripts import SCRIPTS
from scrun.cli.parse import Parsed
from scrun.core.errors import UsageError
from scrun.core.output import write


def run(parsed: Parsed) -> int:
    """Print the script on standard output."""
    shell = parsed.operands[0]
    if shell not in SCRIPTS:
        raise UsageError(f"no completion for {shell!r}, only for {', '.join(SCRIPTS)}")
    write(SCRIPTS[shell].encode())
    return 0
