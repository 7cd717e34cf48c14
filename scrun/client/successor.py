"""Waits for the supervisor that adopts a container (docs/decisions/adoption.md)."""

import _socket

from scrun.cli.parse import Parsed
from scrun.protocol import wire

_PATIENCE = 60.0
_DYING = 2.0
_PAUSE = 0.05
_TRIES = 5


def wait_for_successor(directory: str) -> "_socket.socket | None":
    """Connect to the supervisor that adopts a container; None if nobody does.

    Args:
        directory: The container's record.

    Raises:
        OSError: There may be one, which cannot be reached.
    """
    import time

    begun = time.monotonic()
    may_come = True
    while True:
        try:
            return wire.connect_supervisor(directory, "supervisor")
        except wire.NOBODY:
            if not may_come:
                return None
        # after a "no" we connect once more: it may just have been adopted
        may_come = time.monotonic() - begun < _patience(directory)
        if may_come:
            time.sleep(_PAUSE)


def _patience(directory: str) -> float:
    """Return how long a successor may take, in seconds; 0 if there will be none.

    A process that is being killed closes its socket before it is dead. A supervisor that has
    adopted the container listens already.
    """
    # records take longer to import than all of an `exec` that finds its supervisor
    from scrun.core.errors import ScrunError
    from scrun.model.adoption import held_record
    from scrun.model.identity import is_dead

    try:
        record = held_record(directory)
    except (ScrunError, OSError):
        return 0
    if record is None or record.supervisor is None:
        return 0
    return _PATIENCE if is_dead(record.supervisor) else _DYING


def connect_served(directory: str) -> _socket.socket:
    """Connect to a container's supervisor, or to the one that adopts it.

    Raises:
        ScrunError: Nobody serves it.
        OSError: It cannot be reached.
    """
    try:
        return wire.connect_supervisor(directory, "supervisor")
    except wire.NOBODY:
        sock = wait_for_successor(directory)
        if sock is None:
            from scrun.client.find import explain_unserved

            raise explain_unserved(directory) from None
        return sock


def was_deleted(parsed: Parsed, directory: str, pid: bytes = b"") -> bool:
    """Delete a container that its own command has created, even if its supervisor has died.

    Args:
        parsed: The command line.
        directory: The container's record.
        pid: The container's, if it is known: another one may have its id by now.

    Returns:
        Whether nothing is left of it.
    """
    import time

    from scrun.client import orphan
    from scrun.client.ask import ask
    from scrun.core.errors import ScrunError
    from scrun.core.paths import has_record

    fields = [b"delete", wire.encoded(directory.rpartition("/")[2]), b"1", *[pid] * bool(pid)]
    for number in range(_TRIES):
        if not has_record(directory):
            return True
        time.sleep(_PAUSE * number)
        try:
            try:
                return ask(directory, "supervisor", fields)[0] == 0
            except wire.NOBODY:
                if sock := wait_for_successor(directory):
                    sock.close()
                else:
                    return orphan.delete(parsed, directory, fields)[0] == 0
        except (ScrunError, OSError):
            pass  # that one has died as well
    return not has_record(directory)


def delete_own(parsed: Parsed, directory: str, pid: bytes) -> None:
    """Delete the container with this pid; after a failure the next `list` shows it.

    Args:
        parsed: The command line of the `run` that has made it.
        directory: The container's record.
        pid: The container's.
    """
    from scrun.client.ask import ask

    container = wire.encoded(directory.rpartition("/")[2])
    try:
        ask(directory, "supervisor", [b"delete", container, b"1", pid])
    except OSError:
        was_deleted(parsed, directory, pid)
