"""How a program begins and ends: the command line is read, and an error is explained."""

from collections.abc import Callable

from scrun.cli.failure import explain_end
from scrun.cli.parse import Parsed, parse


def main(run: Callable[[Parsed, list[str]], int], argv: list[str]) -> int:
    """Run a program, by the command line and its unparsed arguments; return its exit status."""
    parsed = None
    try:
        parsed = parse(argv)
        return run(parsed, argv)
    except BaseException as error:
        return explain_end(error, parsed)
