"""Jobs that wait for their next container, of all supervisors of a root directory."""

from collections.abc import Iterator

from scrun.core.paths import keepers
from scrun.protocol import wire


def ask_all(root: str, fields: "list[bytes]") -> Iterator[tuple[int, bytes]]:
    """Send a request to each supervisor that may have such jobs; yield the answers.

    A supervisor that does not answer has ended, and its jobs with it.

    Args:
        root: The root directory.
        fields: The request.

    Raises:
        OSError: The root directory cannot be read.
    """
    for name in keepers(root):
        try:
            sock = wire.connect_supervisor(root, name)
            try:
                wire.send(sock, fields)
                yield wire.receive(sock)
            finally:
                sock.close()
        except OSError:
            continue
