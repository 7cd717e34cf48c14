"""Requests to the supervisor of a running container, for commands that are called seldom."""

from scrun.cli.parse import Parsed
from scrun.client.ask import converse
from scrun.core.output import say


def ask_supervisor(parsed: Parsed, directory: str, fields: "list[bytes]") -> int:
    """Send a request and print the answer; return the exit status.

    Args:
        parsed: The command line.
        directory: The container's record.
        fields: The request.

    Raises:
        UnknownContainer: There is no such container.
        StateError: Nobody serves it any more.
    """
    status, answer = fetch_answer(directory, fields)
    if status:
        from scrun.cli.failure import report_failure

        return report_failure(answer, status, parsed)
    say(answer)
    return 0


def fetch_answer(directory: str, fields: "list[bytes]") -> "tuple[int, bytes]":
    """Send a request; return the exit status and the answer.

    Raises:
        UnknownContainer: There is no such container.
        StateError: Nobody serves it any more.
    """
    from scrun.client.successor import connect_served

    return converse(lambda: connect_served(directory), fields)
