"""Takes an image to the node's disk, and passes it on to other nodes. In a child of the shim's.

A peer gets what is there already while the rest still comes, so the last of many nodes has it not
much later than the first.
"""

import _socket as socket  # without its enums, which take some ms
import hmac
import os
import select
import time

from .frames import proof

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

WHOLE = b"+"
"""What it tells when all has come."""

_NONCE = _PROOF = 32
_PIECE = 1 << 18
_MOST_UNPROVED = 16
_STALLED = 60.0  # seconds without a byte
_LATE = 30.0  # seconds for peers to come, once all is there
_IN, _OUT = select.POLLIN, select.POLLOUT


class Courier:
    """What carries one image."""

    def __init__(self, image: int, size: int, told: int) -> None:
        """Know the image.

        Args:
            image: Where it is written, and read; a descriptor.
            size: How many bytes it has.
            told: Where WHOLE goes, or why it will not come.
        """
        self._image, self._size, self._told = image, size, told
        self._there = 0
        self._source = -1
        self._listener: socket.socket | None = None
        self._secret = b""
        self._left = 0
        self._peers: dict[int, _Peer] = {}
        self._poll = select.poll()

    def serve(self, listener: "socket.socket", secret: bytes, peers: int) -> None:
        """Pass it on, too.

        Args:
            listener: Listens, non-blocking.
            secret: What peers have to know.
            peers: How many will come.
        """
        self._listener, self._secret, self._left = listener, secret, peers
        self._poll.register(listener.fileno(), _IN)

    def take_from(self, source: int) -> None:
        """Take it from a descriptor; -1: it is there."""
        self._source = source
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
            os.write(self._told, (error.strerror or str(error)).encode())
            return 1
        os.write(self._told, WHOLE)
        os.close(self._told)
        self._until(lambda: not self._left and not self._peers, _LATE)
        return 0

    def _take_all(self) -> None:
        if not self._until(lambda: self._source < 0, _STALLED):
            raise OSError(f"nothing came for {_STALLED:g} s")
        if self._there < self._size:
            raise OSError(f"{self._there} of {self._size} bytes came")
        os.fsync(self._image)

    def _until(self, done: "Callable[[], bool]", patience: float) -> bool:
        """Carry until something is so; return False if nothing moves for some seconds."""
        late = time.monotonic() + patience
        while not done():
            left = late - time.monotonic()
            if left <= 0:
                return False
            moved = False
            for fd, events in self._poll.poll(left * 1000):
                moved = self._happened(fd, events) or moved
            if moved:
                late = time.monotonic() + patience
        return True

    def _happened(self, fd: int, events: int) -> bool:
        """Return whether bytes of the image have moved."""
        if fd == self._source:
            self._read()
            return True
        if self._listener is not None and fd == self._listener.fileno():
            self._accept()
            return False
        peer = self._peers.get(fd)
        if peer is None:  # forgotten a moment ago
            return False
        try:
            return self._go_on(peer, events)
        except OSError:  # it has gone; who waits for it sends it another way
            self._forget(peer)
            return False

    def _read(self) -> None:
        data = os.read(self._source, _PIECE)
        if len(data) > self._size - self._there:
            raise OSError("more came than was to")
        if not data:
            self._poll.unregister(self._source)
            self._source = -1
            return
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._image, rest) :]
        self._there += len(data)
        if self._there == self._size:
            self._poll.unregister(self._source)
            self._source = -1
        for peer in self._peers.values():
            self._watch(peer)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            fd = _accepted(self._listener)
        except OSError:
            return
        unproved = [peer for peer in self._peers.values() if not peer.is_proved]
        if len(unproved) >= _MOST_UNPROVED:
            self._forget(unproved[0])
        self._peers[fd] = _Peer(fd)
        self._poll.register(fd, _IN)

    def _go_on(self, peer: "_Peer", events: int) -> bool:
        if not peer.is_proved:
            if peer.proves(self._secret):
                self._left -= 1
                self._watch(peer)
            return False
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
        if peer.is_proved:
            self._poll.modify(peer.fd, _OUT if peer.sent < self._there else 0)

    def _forget(self, peer: "_Peer") -> None:
        self._poll.unregister(peer.fd)
        del self._peers[peer.fd]
        os.close(peer.fd)


def _accepted(listener: socket.socket) -> int:
    fd: int = listener._accept()[0]  # type: ignore[attr-defined]
    os.set_blocking(fd, False)
    return fd


class _Peer:
    """A node that gets it.

    Attributes:
        fd: Its connection.
        sent: How many bytes it has got.
        is_proved: Whether it has proved to know the secret.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.sent = 0
        self.is_proved = False
        self._both = b""
        self._said = b""

    def proves(self, secret: bytes) -> bool:
        """Take what it says; return whether it has proved to know the secret now.

        Raises:
            OSError: It does not know it, or has gone.
        """
        data = os.read(self.fd, (_PROOF if self._both else _NONCE) - len(self._said))
        if not data:
            raise OSError("it has gone")
        self._said += data
        if len(self._said) < _NONCE:
            return False
        said, self._said = self._said, b""
        if not self._both:
            own = os.urandom(_NONCE)
            self._both = said + own
            os.write(self.fd, own)
            return False
        if not hmac.compare_digest(said, proof(secret, b"shim", self._both)):
            raise OSError("it does not know the secret")
        os.write(self.fd, proof(secret, b"supervisor", self._both))
        self.is_proved = True
        return True
