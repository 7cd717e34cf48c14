"""scrun completion: print the script by which a shell completes scrun's command line.

scrun(1) says where to put it. The script knows the commands and options of the scrun that printed
it; the ids of containers it asks for when they are needed, by `scrun list --quiet`.

Errors: UsageError, for another shell.
"""

from scrun.cli.completion.words import SHELLS
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
    if shell not in SHELLS:
        raise UsageError(f"no completion for {shell!r}, only {', '.join(SHELLS)}")
    name = f"scrun.cli.completion.{shell}"
    module = __import__(name, fromlist=["script"])
    write(module.script().encode())
    return 0
