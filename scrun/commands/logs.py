"""scrun logs: print what a container that `run --detach` started has written.

With `--messages`: what scrun and Slurm have said about it, of any container. With `--supervisor`:
the log of the supervisors of the root directory, for reports of faults.

Wire, for `--follow` only: `follow ID KIND`, KIND "output" or "messages"; the answer is one byte 0
and then the text, as it comes, until the container ends.

Errors: the container's output is not kept by scrun.
"""

import _socket
import os

from scrun import wire
from scrun._fast import record_root, write
from scrun.cli.parse import Parsed
from scrun.errors import StateError, UnknownContainer, UsageError
from scrun.paths import OWN_LOG, has_record
from scrun.record import OUTPUT

_PIECE = 65536


def run(parsed: Parsed, argv: "list[str]") -> int:
    """Print it.

    Raises:
        UnknownContainer: There is no such container.
        StateError: Its output is not here.
        UsageError: No container is named.
        OSError: The file cannot be read.
    """
    del argv
    root = record_root(parsed)
    if parsed.count("supervisor"):
        return _print_own_log(root, parsed)
    if not parsed.id:
        raise UsageError("logs needs a container-id, or --supervisor: see 'scrun logs --help'")
    container = parsed.id
    directory = os.path.join(root, container)
    if not has_record(directory):
        raise UnknownContainer(f"container {container} does not exist")
    kind = "messages" if parsed.count("messages") else "output"
    path = os.path.join(directory, "log" if kind == "messages" else OUTPUT)
    if not os.path.exists(path):
        raise StateError(
            f"container {container}: its output belongs to who has created it: ask that (podman "
            "logs, docker logs, ...), or see `scrun logs --messages` for what scrun has to say"
        )
    if parsed.count("follow"):
        try:
            sock = wire.connect_supervisor(directory, "supervisor")
        except wire.NOBODY:
            pass  # then it does not grow any more
        else:
            return _follow(sock, [b"follow", os.fsencode(container), kind.encode()], parsed)
    _print(path)
    return 0


def _print_own_log(root: str, parsed: Parsed) -> int:
    """Print what supervisors have logged, the older file first; nothing, if that is all well."""
    if parsed.id or parsed.count("follow") or parsed.count("messages"):
        raise UsageError("logs --supervisor takes no container and no other option")
    path = os.path.join(root, OWN_LOG)
    for name in (path + ".1", path):
        try:
            _print(name)
        except FileNotFoundError:
            pass
    return 0


def _print(path: str) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags), "rb") as file:
        while piece := file.read(_PIECE):
            write(piece)


def _follow(sock: _socket.socket, fields: "list[bytes]", parsed: Parsed) -> int:
    wire.send(sock, fields)
    status = sock.recv(1) or b"\1"
    answer = b""
    while piece := sock.recv(_PIECE):
        if status == b"\0":
            write(piece)
        else:
            answer += piece
    if status == b"\0":
        return 0
    from scrun.commands.failure import report_failure

    return report_failure(answer or b"the supervisor went away", status[0], parsed)
