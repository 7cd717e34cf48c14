"""Sockets of the engine's on the submit host that a container mounts.

It gets one of ours instead of each; the supervisor connects to the engine's own.
"""

import _socket as socket  # without its enums, which take some ms
import os

from .arrivals import Arrivals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .arrivals import Where
    from .loop import Loop

_QUEUE = 128
_MODE = 0o600


class EngineSockets(Arrivals):
    """The sockets of one container."""

    def __init__(
        self, loop: "Loop", place: str, config: "dict[str, Any]", destinations: "Sequence[str]"
    ) -> None:
        """Make them.

        Args:
            place: A directory for this container alone.
            config: Its config.json, whose mounts are changed.
            destinations: Where it mounts such sockets.

        Raises:
            OSError: No descriptor is left, or no room.
        """
        super().__init__(loop)
        try:
            for number, mount in enumerate(config.get("mounts") or []):
                if mount["destination"] in destinations:
                    mount["source"] = os.path.join(place, f"socket-{number}")
                    self.listen(_listening(mount["source"]), _at(mount["destination"]))
        except BaseException:
            self.close()
            raise


def _listening(path: str) -> "socket.socket":
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # the name of a socket has 107 bytes at most
        listener.bind(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
        os.chmod(path, _MODE)
        listener.listen(_QUEUE)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(directory)
    return listener


def _at(destination: str) -> "Where":
    return lambda _client: {"path": destination}
