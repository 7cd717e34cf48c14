"""Where other shims connect."""

import _socket as socket  # without its enums, which take some ms

from .door import BACKLOG


def listen() -> socket.socket:
    """Listen at any port, non-blocking.

    Raises:
        OSError: Sockets cannot be made.
    """
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind((host, 0))
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except OSError:  # this machine has no IPv6
            if family == socket.AF_INET:
                raise
            continue
        return listener
    raise AssertionError("unreachable")
