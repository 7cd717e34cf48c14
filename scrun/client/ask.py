"""Requests to a supervisor that have one answer, and where the records are.

`state`, `start`, `kill` and `delete` use this module, so it imports built-in modules only.
"""

import posix

from scrun.cli.parse import Parsed
from scrun.protocol import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable


_NOT_TWICE = (b"start", b"pause", b"resume")


def forward(parsed: Parsed, *, again: bool = False) -> int:
    """Forward an operation to the container's supervisor and print the answer.

    Args:
        parsed: The command line.
        again: Whether a supervisor was asked before, which has died before it answered.
    """
    if parsed.options.get("regex") or (parsed.command == "delete" and parsed.operands):
        from scrun.client.matching import forward_each

        return forward_each(parsed)
    container = parsed.id or ""
    directory = record_root(parsed) + "/" + container
    fields = build_request(parsed, container)
    if again:
        fields = asked_again(fields)
    asked = [parsed.command] * again

    def meanwhile() -> None:
        asked.append(parsed.command)
        if parsed.command == "state":
            _load_output()

    try:
        status, answer = ask(directory, "supervisor", fields, meanwhile)
    except wire.NOBODY:
        if "delete" in asked and not posix.access(directory, posix.F_OK):
            return 0  # its supervisor died before it could say that it is deleted
        from scrun.client import orphan

        return orphan.run(parsed, directory, asked=bool(asked))
    return conclude(parsed, directory, status, answer)


def conclude(parsed: Parsed, directory: str, status: int, answer: bytes) -> int:
    """Print the answer to a forwarded operation, or report what it says; return the status."""
    if status:
        from scrun.cli.failure import report_failure

        return report_failure(answer, status, parsed)
    if parsed.command == "start" and _is_of_a_pod(directory):
        from scrun.client.common_supervisor import common_supervisor

        common_supervisor(parsed)
    if answer:
        if parsed.command == "delete":
            from scrun.cli.report import report

            report(answer.decode(errors="replace"), log=None, log_format="text")
            return 0
        from scrun.core.output import say

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


def asked_again(fields: "list[bytes]") -> "list[bytes]":
    """Return a request for the successor of a supervisor that may have carried it out."""
    return [*fields[:2], b"1", *fields[3:]] if fields[0] in _NOT_TWICE else fields


def _load_output() -> None:
    """Import what prints the answer."""
    from scrun.core import output as output


def ask(
    directory: str, name: str, fields: "list[bytes]", meanwhile: "Callable[[], None] | None" = None
) -> "tuple[int, bytes]":
    """Send one request to the supervisor at DIRECTORY/NAME and wait for its answer.

    Args:
        directory: The record.
        name: The name of the socket in it.
        fields: The request.
        meanwhile: What to do while the supervisor works.

    Raises:
        OSError: No supervisor listens there (`wire.NOBODY`), or it does not answer.
    """
    return converse(lambda: wire.connect_supervisor(directory, name), fields, meanwhile)


def converse(
    connect: "Callable[[], _socket.socket]",
    fields: "list[bytes]",
    meanwhile: "Callable[[], None] | None" = None,
) -> "tuple[int, bytes]":
    """Send one request, and wait for its answer.

    A supervisor that hangs up without an answer was about to exit, has died, or did not get the
    whole request in time, for example because this process was stopped. The next attempt to
    connect tells which. What the first one has done already is no error of the next one's.

    Args:
        connect: Connects to the supervisor.
        fields: The request.
        meanwhile: What to do while the supervisor works.

    Raises:
        OSError: As `connect`; or the supervisor hangs up each time.
    """
    for _ in range(3):
        sock = connect()
        try:
            wire.send(sock, fields)
            if meanwhile is not None:
                meanwhile()
            return wire.receive(sock)
        except ConnectionResetError:
            fields = asked_again(fields)
        finally:
            sock.close()
    raise ConnectionResetError(104, "it hangs up without an answer; try again", "the supervisor")


def record_root(parsed: Parsed) -> str:
    """Return the root directory of the records, from `--root`, the settings or the default.

    Raises:
        SettingsError: A settings file is invalid, or there is no directory for the default.
    """
    given = parsed.options.get("root")
    if isinstance(given, str):
        if given[:1] == "/" and "//" not in given and "/." not in given and given[-1] != "/":
            return given
        import os  # a sixth of the whole command

        return os.path.abspath(given)
    from scrun.settings.file.sources import default_root, environment

    return default_root(environment(), setting(parsed, "root"))


def setting(parsed: Parsed, key: str) -> "str | None":
    """Look up one of the settings that decide where to ask: `root` or `group`.

    Raises:
        SettingsError: A settings file or a variable is invalid.
    """
    from scrun.settings.file.remembered import recall
    from scrun.settings.file.sources import environment

    given = parsed.options.get("config-file")
    config_file = given if isinstance(given, str) else None
    root = environment().get("SCRUN_ROOT", "") if key == "root" else ""
    if root[:1] == "/":
        return root
    found = None if root else recall(environment(), config_file)
    if found is None:
        from scrun.settings.file.load import load_and_remember

        found = load_and_remember(environment(), config_file)
    return found.get(key)
