"""Find the containers under a root directory, also by the beginning of an id or an expression."""

import os

from scrun.cli.failure import explain
from scrun.cli.parse import Parsed, record_root
from scrun.client.ask import forward
from scrun.core.errors import UnknownContainer, UsageError
from scrun.oci.ids import is_id


def containers(root: str) -> list[str]:
    """Return the ids under a root directory, sorted; none if the directory does not exist."""
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    return sorted(filter(is_id, names))


def resolve(parsed: Parsed) -> tuple[str, str]:
    """Return an id and its record: the given id if it exists, or the only one that begins so.

    Only for commands that people type: engines know whole ids, and no container should end because
    of an abbreviation.
    """
    root, whole = record_root(parsed), parsed.id or ""
    if not os.path.lexists(os.path.join(root, whole)):
        try:
            found = [name for name in containers(root) if name.startswith(whole)] or [whole]
        except OSError:
            found = [whole]
        if len(found) > 1:
            many = ", ".join(found)
            raise UsageError(f"container {whole}: is ambiguous: {many}: give more of it")
        whole = found[0]
    return whole, os.path.join(root, whole)


def forward_each(parsed: Parsed) -> int:
    """Carry a command out for each container; return the highest exit status.

    For `delete ID ID...`, and --regex of kill and delete, as in crun: an expression has to match
    the whole id. The containers are handled in turn; after a failure the rest still get theirs.
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
    import re

    try:
        pattern = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"--regex {text!r}: is not a regular expression: {error}") from None
    found = [name for name in containers(record_root(parsed)) if pattern.fullmatch(name)]
    if not found and not parsed.options.get("force"):
        raise UnknownContainer(f"no container matches {text!r}: it does not exist")
    return found
