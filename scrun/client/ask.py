"""Forwards `state`, `start`, `kill`, `delete`, `pause` and `resume` to a container's supervisor.

It imports built-in modules only.
"""

import posix

from scrun.cli.failure import report_failure
from scrun.cli.parse import Parsed, record_root
from scrun.cli.report import report
from scrun.client.reach import run_unserved
from scrun.core.output import say
from scrun.protocol import wire


def forward(parsed: Parsed, *, again: bool = False) -> int:
    """Forward an operation to the container's supervisor and print the answer.

    `again` says whether a supervisor was asked before, which has died before it answered.
    """
    container = parsed.id or ""
    directory = record_root(parsed) + "/" + container
    fields = build_request(parsed, container)
    if again:
        fields = wire.asked_again(fields)
    asked = [parsed.command] * again

    def meanwhile() -> None:
        asked.append(parsed.command)

    try:
        status, answer = wire.ask(directory, "supervisor", fields, meanwhile)
    except wire.NOBODY:
        if "delete" in asked and not posix.access(directory, posix.F_OK):
            return 0  # its supervisor died before it could say that it is deleted
        unserved = run_unserved(parsed, directory)
        return forward(parsed, again=bool(asked)) if unserved is None else unserved
    return conclude(parsed, directory, status, answer)


def conclude(parsed: Parsed, directory: str, status: int, answer: bytes) -> int:
    """Print the answer to a forwarded operation, or report what it says; return the status."""
    if status:
        return report_failure(answer, status, parsed)
    if parsed.command == "start" and _is_of_a_pod(directory):
        from scrun.client.launch import launch_common

        launch_common(parsed)
    if answer:
        if parsed.command == "delete":
            report(answer.decode(errors="replace"), log=None, log_format="text")
            return 0
        say(answer)
    return 0


def _is_of_a_pod(directory: str) -> bool:
    """Tell whether a pod's supervisor serves a container, if that has not been deleted already."""
    try:
        return "/@pod-" in posix.readlink(directory + "/supervisor")
    except OSError:
        return False


def build_request(parsed: Parsed, container: str) -> "list[bytes]":
    """Build the request for a forwarded operation (see `scrun.protocol.wire`)."""
    fields = [parsed.command, container]
    if parsed.command == "kill":
        fields.append(parsed.operands[0] if parsed.operands else "TERM")
        fields += ["1"] * bool(parsed.options.get("all"))
    elif parsed.command == "delete":
        fields.append("1" if parsed.options.get("force") else "")
    return [wire.encoded(field) for field in fields]
