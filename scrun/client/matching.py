"""Commands for several containers: `delete ID ID...`, and --regex of kill and delete, as in crun.

An expression has to match the whole id. The containers are handled in turn; after a failure the
rest still get their turn.

Errors: the expression is invalid, or, without --force, no container matches.
"""

import re

from scrun.cli.failure import explain
from scrun.cli.parse import Parsed
from scrun.client.ask import forward, record_root
from scrun.client.find import containers
from scrun.core.errors import UnknownContainer, UsageError


def forward_each(parsed: Parsed) -> int:
    """Carry a command out for each container; return the highest exit status.

    Raises:
        UsageError: The regular expression is invalid.
        UnknownContainer: No container matches.
        OSError: The root directory cannot be read.
    """
    operands, parsed.operands = parsed.operands, []
    if parsed.command == "kill":
        operands, parsed.operands = operands[:1], operands[1:]
    if parsed.options.pop("regex", None):
        found = [name for text in operands for name in _matching(text, parsed)]
    else:
        found = [parsed.id or "", *operands]
    worst = 0
    for name in dict.fromkeys(found):
        parsed.id = name
        try:
            status = forward(parsed)
        except Exception as error:
            status = explain(error, parsed)
        worst = max(worst, status)
    return worst


def _matching(text: str, parsed: Parsed) -> list[str]:
    """List the containers whose id matches an expression.

    Raises:
        UsageError: It is invalid.
        UnknownContainer: No container matches.
        OSError: The root directory cannot be read.
    """
    try:
        pattern = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"--regex {text!r}: is not a regular expression: {error}") from None
    found = [name for name in containers(record_root(parsed)) if pattern.fullmatch(name)]
    if not found and not parsed.options.get("force"):
        raise UnknownContainer(f"no container matches {text!r}: it does not exist")
    return found
