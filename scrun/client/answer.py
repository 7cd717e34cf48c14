"""A question to the supervisor of a running container, for the commands that are seldom called."""

from scrun.cli.parse import Parsed
from scrun.client.ask import ask
from scrun.client.find import unserved
from scrun.core.output import say
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
