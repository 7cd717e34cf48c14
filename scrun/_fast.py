"""The entry point: forwards the frequent operations without one heavy import.

An engine calls `create`, `start`, `kill` and `delete` for each container, and a bare interpreter
is most of what such a call costs; so this module and what it imports get by with built-in
modules. Everything else (help, errors, a supervisor that is not there) is imported where it is
needed, by name.
"""

import os
import sys

from scrun.cli.parse import Parsed, parse
from scrun.core.errors import UsageError
from scrun.protocol import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable

_FORWARDED = ("state", "start", "kill", "delete", "pause", "resume")
_INFORMATION = ("help", "usage", "version")


def main() -> "None":
    """Run the command of `sys.argv`; does not return.

    The interpreter's own way out is passed over (`os._exit`): with nothing to flush or join it
    is a millisecond of every call.
    """
    try:
        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = 130
    os._exit(status)


def run(argv: "list[str]") -> int:
    """Run one command and return its exit status."""
    parsed = None
    try:
        try:
            parsed = parse(argv)
        except UsageError as error:
            if error.left is None:
                raise
            from scrun.client.plugin_options import parse_again

            argv, parsed = parse_again(argv, error)
        if parsed.command in _FORWARDED:
            return forward(parsed)
        return _module(parsed.command).run(parsed, argv)  # type: ignore[attr-defined, no-any-return]
    except Exception as error:
        from scrun.cli.failure import explain

        return explain(error, parsed)


def _module(command: str) -> object:
    """Import what carries a command out: the module of that name."""
    name = "help" if command in _INFORMATION else command.replace("-", "_")
    package = __import__("scrun.commands", fromlist=[name])
    __import__("scrun.commands." + name)
    return getattr(package, name)


def forward(parsed: Parsed) -> int:
    """Ask the supervisor of a container, and print what it answers."""
    from scrun.oci.ids import check_id

    if parsed.options.get("regex"):
        from scrun.client.matching import forward_each

        return forward_each(parsed)
    container = check_id(parsed.id or "")
    directory = record_root(parsed) + "/" + container
    try:
        status, answer = ask(directory, "supervisor", request(parsed, container))
    except wire.NOBODY:
        from scrun.client import orphan

        return orphan.run(parsed, directory)
    if status:
        from scrun.cli.failure import report_failure

        return report_failure(answer, status, parsed)
    if parsed.command == "start" and "/@pod-" in os.readlink(directory + "/supervisor"):
        from scrun.client.common_supervisor import common_supervisor

        common_supervisor(parsed)
    say(answer)
    return 0


def say(text: bytes) -> None:
    """Print text on standard output; at a terminal, what would move its cursor is written out.

    Ids, paths and annotations come from anywhere, and an answer that root gets may be another
    user's.

    Raises:
        OSError: As `write`.
    """
    if os.isatty(1):
        from scrun.cli.report import printable_lines

        text = printable_lines(text)
    write(text)


def write(content: bytes) -> None:
    """Print on standard output, which may be closed, or its reader gone.

    Not by `sys.stdout`: it is None when the descriptor was closed, and nobody flushes it.

    Raises:
        OSError: It cannot be written, for another reason.
    """
    while content:
        try:
            content = content[os.write(1, content) :]
        except BlockingIOError:  # somebody else's pipe or terminal, made so by them
            import select

            select.select([], [1], [])
        except OSError as error:
            if error.errno in (9, 32):  # closed, as `scrun state X | true`: who asked has enough
                return
            raise OSError(error.errno, error.strerror, "standard output") from None


def request(parsed: Parsed, container: str) -> "list[bytes]":
    """Build the request for a forwarded operation (see `scrun.protocol.wire`)."""
    fields = [parsed.command, container]
    if parsed.command == "kill":
        fields.append(parsed.operands[0] if parsed.operands else "TERM")
        fields += ["1"] * bool(parsed.options.get("all"))
    elif parsed.command == "delete":
        fields.append("1" if parsed.options.get("force") else "")
    return [os.fsencode(field) for field in fields]


def ask(directory: str, name: str, fields: "list[bytes]") -> "tuple[int, bytes]":
    """Send one request to a supervisor and wait for its answer.

    Raises:
        OSError: No supervisor listens there (`wire.NOBODY`), or none answers.
    """
    return converse(lambda: wire.connect_supervisor(directory, name), fields)


def converse(
    connect: "Callable[[], _socket.socket]", fields: "list[bytes]"
) -> "tuple[int, bytes]":
    """Send one request, and wait for its answer.

    A supervisor that hangs up without one was on its way out, has died, or has not got the whole
    request in time, as when this process was stopped meanwhile. Whether it listens tells which.

    Args:
        connect: Connects to it.
        fields: The request.

    Raises:
        OSError: Of `connect`; or it hangs up again and again.
    """
    for _ in range(3):
        sock = connect()
        try:
            wire.send(sock, fields)
            return wire.receive(sock)
        except ConnectionResetError:
            pass
        finally:
            sock.close()
    raise ConnectionResetError(104, "it hangs up without an answer; try again", "the supervisor")


def record_root(parsed: Parsed) -> str:
    """Return the directory under which the records of containers are: `--root`, settings, default.

    Raises:
        SettingsError: A settings file is wrong, or there is no place for the default.
    """
    given = parsed.options.get("root")
    if isinstance(given, str):
        return os.path.abspath(given)
    from scrun.settings.file.quick import default_root

    return default_root(os.environ, setting(parsed, "root"))


def setting(parsed: Parsed, key: str) -> "str | None":
    """Look one key of the settings up that the fast path needs: `root` or `group`."""
    from scrun.settings.file.quick import quick

    given = parsed.options.get("config-file")
    config_file = given if isinstance(given, str) else None
    found = quick(os.environ, config_file)
    if found is None:  # said in a way that takes the whole of TOML to read
        from scrun.settings.file.load import load

        value = getattr(load(os.environ, config_file), key)
        return value if isinstance(value, str) else None
    return found.get(key)
