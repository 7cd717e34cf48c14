"""A question to the supervisor of a running container, for the commands that are seldom called."""

import os

from scrun.cli.parse import Parsed
from scrun.client.ask import ask
from scrun.core.errors import StateError, UnknownContainer, UsageError
from scrun.core.output import say
from scrun.core.paths import has_record
from scrun.protocol import wire


def ask_supervisor(parsed: Parsed, directory: str, fields: "list[bytes]") -> int:
    """Ask, and print the answer; return the exit status.

    Args:
        parsed: The command.
        directory: The container's record.
        fields: The request.

    Raises:
        UnknownContainer: There is no such container.
        StateError: Nobody serves it any more.
    """
    status, answer = answer_of(directory, fields)
    if status:
        from scrun.cli.failure import report_failure

        return report_failure(answer, status, parsed)
    say(answer)
    return 0


def answer_of(directory: str, fields: "list[bytes]") -> "tuple[int, bytes]":
    """Ask, and return the exit status and what to print.

    Raises:
        UnknownContainer: There is no such container.
        StateError: Nobody serves it any more.
    """
    try:
        return ask(directory, "supervisor", fields)
    except wire.NOBODY:
        raise unserved(directory) from None


def meant(parsed: Parsed, root: str) -> str:
    """Return the id that a person means: the one that is there, or the only one that begins so.

    For the commands of people only: engines know whole ids, and nothing is ended by half of one.

    Raises:
        UsageError: Several begin so.
    """
    given = parsed.id or ""
    if os.path.lexists(os.path.join(root, given)):
        return given
    from scrun.commands.list import containers

    try:
        found = [name for name in containers(root) if name.startswith(given)]
    except OSError:
        found = []
    if len(found) > 1:
        raise UsageError(f"container {given}: which one: {', '.join(found)}?")
    return found[0] if found else given


def unserved(directory: str) -> "UnknownContainer | StateError":
    """Say why nobody answers for a container.

    Raises:
        OSError: That cannot be known.
    """
    container = os.path.basename(directory)
    if not has_record(directory):
        return UnknownContainer(f"container {container} does not exist")
    return StateError(f"container {container} is stopped: its supervisor is gone; delete it")
