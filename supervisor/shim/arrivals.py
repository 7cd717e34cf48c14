"""What containers connect to on the submit host, until the supervisor takes it.

It does so one after the other, connects there, and carries the bytes.
"""

import _socket as socket  # without its enums, which take some ms
import errno
import struct
from _collections import deque  # collections itself takes longer

from .loop import READ
from .runtime import CallRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .containers import Reply
    from .loop import Loop

    Where = Callable[[socket.socket], dict[str, object]]
    """Returns what a client has connected to, as the reply to `accept` says it; raises OSError."""

MOST = 256  # connections that are not carried yet, and so of questions that are not answered
_PAUSE = 1.0  # seconds
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RESET = struct.pack("ii", 1, 0)


class Arrivals:
    """Listening sockets, and the connections that have arrived at them."""

    def __init__(self, loop: "Loop") -> None:
        self._loop = loop
        self._listeners: list[tuple[socket.socket, Where]] = []
        self._arrived: deque[dict[str, object]] = deque()
        self._reply: Reply | None = None
        self._number = 0
        self._clients: dict[int, tuple[socket.socket, dict[str, object]]] = {}

    def listen(self, sock: "socket.socket", where: "Where") -> None:
        """Accept connections at a socket, which is ours then.

        While there is no room, others wait in the kernel's queue.
        """
        sock.setblocking(False)
        self._listeners.append((sock, where))
        self._listen()

    def _listen(self) -> None:
        if len(self._clients) >= MOST:
            return
        for sock, where in self._listeners:
            self._loop.watch(sock.fileno(), READ, self._accepting(sock, where))

    def _accepting(self, sock: "socket.socket", where: "Where") -> "Callable[[int], None]":
        return lambda _events: self._accept(sock, where)

    def _stop(self) -> None:
        for sock, _ in self._listeners:
            self._loop.forget(sock.fileno())

    def _accept(self, sock: "socket.socket", where: "Where") -> None:
        try:
            fd, _ = sock._accept()  # type: ignore[attr-defined]
        except OSError as error:
            if error.errno in _NO_ROOM:  # no event tells when there is
                self._stop()
                self._loop.after(_PAUSE, self._listen)
            return
        client = socket.socket(fileno=fd)
        try:
            what = where(client)
        except OSError:
            _reset(client)
            return
        client.setblocking(False)
        number = self.number()
        what["number"] = number
        self._clients[number] = client, what
        if len(self._clients) >= MOST:
            self._stop()
        self.put(what)

    def number(self) -> int:
        """Return a number that nothing else here has."""
        self._number += 1
        return self._number

    def put(self, what: "dict[str, object]") -> None:
        """Add something that has arrived."""
        self._arrived.append(what)
        self._give()

    def _give(self) -> None:
        if self._arrived and self._reply is not None:
            reply, self._reply = self._reply, None
            reply(self._arrived.popleft())

    def take(self, reply: "Reply") -> None:
        """Reply with the next that arrives; whoever waited before has gone."""
        self._reply = reply
        self._give()

    def offer_again(self) -> None:
        """Go on for another supervisor: connections that the last one has not carried are new."""
        self._reply = None
        self._arrived = deque(what for _, what in self._clients.values())

    def client(self, number: int) -> "socket.socket":
        """Return a connection that has arrived; it is the caller's from now on.

        Raises:
            CallRefused: There is none of this number.
        """
        try:
            client, _ = self._clients.pop(number)
        except KeyError:
            raise CallRefused(f"connection {number} is not there") from None
        self._listen()
        return client

    def refuse(self, number: int) -> None:
        """Reset a connection, if it is there."""
        if number in self._clients:
            _reset(self.client(number))

    def close(self) -> None:
        """Reset all that nobody has taken."""
        self._stop()
        for sock, _ in self._listeners:
            sock.close()
        self._listeners.clear()
        for client, _ in self._clients.values():
            _reset(client)
        self._clients.clear()
        self._reply = None


def _reset(client: "socket.socket") -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    client.close()
