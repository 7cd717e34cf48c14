"""Questions to a supervisor: one request, one answer, and where the records are.

On the path of `state`, `start`, `kill` and `delete`: it imports what is built in.
"""

import os

from scrun.cli.parse import Parsed
from scrun.core.output import say
from scrun.protocol import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable


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
