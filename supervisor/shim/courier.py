"""Takes an image to the node's disk, and passes it on to other nodes. In a child of the shim's.

A peer gets what is there already while the rest still arrives, so the last of many nodes has it
not much later than the first.
"""

import _socket as socket  # without its enums, which take some ms
import os
import select
import time

from scrun.supervisor.wire.seals import digest

from .door import Door

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

WHOLE = b"+\n"
"""Its line when the image is complete."""

FAILED, STRANGERS = b"!", b"?"
"""How its other lines begin: why it failed; who connected and did not know the secret."""

_PIECE = 1 << 18
_STALLED = 60.0  # seconds without a byte
_LATE = 30.0  # seconds for peers to connect, once all is there
_IN, _OUT = select.POLLIN, select.POLLOUT


class Courier:
    """What carries one image."""

    def __init__(self, image: int, size: int, told: int) -> None:
        """Take two descriptors: `image` is written and read, `told` gets lines about its fate."""
        self._image, self._size, self._told = image, size, told
        self._there = 0
        self._source = -1
        self._expected = ""
        self._came = digest()
        self._door: Door | None = None
        self._left = self._named = 0
        self._peers: dict[int, _Peer] = {}
        self._poll = select.poll()

    def serve(self, listener: "socket.socket", secret: bytes, peers: int) -> None:
        """Pass it on, too.

        Args:
            listener: Listens, non-blocking.
        """
        self._door, self._left = Door(listener, secret, peers), peers
        self._poll.register(self._door.fileno(), _IN)

    def take_from(self, source: int, expected: str = "") -> None:
        """Take it from a descriptor; -1: it is there.

        Args:
            expected: What its digest has to be.
        """
        self._source, self._expected = source, expected
        if source >= 0:
            self._poll.register(source, _IN)
        else:
            self._there = self._size

    def run(self) -> int:
        """Carry it to the end; return the exit status."""
        try:
            if self._source >= 0:
                self._take_all()
        except OSError as error:
            self.tell(FAILED, error.strerror or str(error))
            return 1
        finally:
            self._name_strangers()
        os.write(self._told, WHOLE)
        self._until(lambda: not self._left and not self._peers, _LATE)
        self._name_strangers()
        return 0

    def tell(self, begins: bytes, words: str) -> None:
        os.write(self._told, begins + words.replace("\n", " ").encode(errors="replace") + b"\n")

    def _name_strangers(self) -> None:
        if self._door is not None and self._door.strangers > self._named:
            self._named = self._door.strangers
            self.tell(STRANGERS, self._door.who())

    def _take_all(self) -> None:
        if not self._until(lambda: self._source < 0, _STALLED):
            raise OSError(f"nothing arrived for {_STALLED:g} s")
        if self._there < self._size:
            raise OSError(f"{self._there} of {self._size} bytes arrived")
        if self._came.hexdigest() != self._expected:
            raise OSError("the received data does not have the announced digest")
        os.fsync(self._image)

    def _until(self, done: "Callable[[], bool]", patience: float) -> bool:
        """Carry until something is so; return False if nothing moves for some seconds."""
        late = time.monotonic() + patience
        while not done():
            left = late - time.monotonic()
            if left <= 0:
                return False
            if self._door is not None:
                left = min(left, self._door.patience())
            moved = False
            for fd, events in self._poll.poll(left * 1000 + 1):
                moved = self._happened(fd, events) or moved
            self._let_in()  # or out, if somebody is late
            if moved:
                late = time.monotonic() + patience
        return True

    def _happened(self, fd: int, events: int) -> bool:
        """Return whether bytes of the image have moved."""
        if fd == self._source:
            self._read()
            return True
        peer = self._peers.get(fd)
        if peer is None:  # forgotten a moment ago
            return False
        try:
            return self._go_on(peer, events)
        except OSError:  # it has gone; its supervisor sends the image another way
            self._forget(peer)
            return False

    def _read(self) -> None:
        data = os.read(self._source, _PIECE)
        if len(data) > self._size - self._there:
            raise OSError("received more data than announced")
        if not data:
            self._poll.unregister(self._source)
            self._source = -1
            return
        self._came.update(data)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._image, rest) :]
        self._there += len(data)
        if self._there == self._size:
            self._poll.unregister(self._source)
            self._source = -1
        for peer in self._peers.values():
            self._watch(peer)

    def _let_in(self) -> None:
        """Pass it on to who has proved to know the secret."""
        if self._door is None:
            return
        for fd, _ in self._door.turn():
            peer = self._peers[fd] = _Peer(fd)
            self._left -= 1
            self._poll.register(fd, 0)
            self._watch(peer)

    def _go_on(self, peer: "_Peer", events: int) -> bool:
        if not events & _OUT:
            raise OSError("it has gone")
        more = min(self._there - peer.sent, _PIECE)
        peer.sent += os.sendfile(peer.fd, self._image, peer.sent, more)
        if peer.sent == self._size:
            self._forget(peer)
        else:
            self._watch(peer)
        return True

    def _watch(self, peer: "_Peer") -> None:
        self._poll.modify(peer.fd, _OUT if peer.sent < self._there else 0)

    def _forget(self, peer: "_Peer") -> None:
        self._poll.unregister(peer.fd)
        del self._peers[peer.fd]
        os.close(peer.fd)


class _Peer:
    """A node that gets it.

    Attributes:
        sent: How many bytes it has got.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.sent = 0
