"""Waits for the supervisor that adopts a container (docs/decisions/adoption.md)."""

import _socket
import time

from scrun.core.errors import ScrunError
from scrun.model.adoption import is_on_its_way
from scrun.protocol import wire

_PATIENCE = 60.0
_PAUSE = 0.05


def wait_for_successor(directory: str) -> "_socket.socket | None":
    """Connect to the supervisor that adopts a container; None if nobody does.

    Args:
        directory: The container's record.

    Raises:
        OSError: There may be one, which cannot be reached.
    """
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        try:
            return wire.connect_supervisor(directory, "supervisor")
        except wire.NOBODY:
            try:
                if not is_on_its_way(directory):
                    return None
            except (ScrunError, OSError):
                return None
            time.sleep(_PAUSE)
    return None


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
