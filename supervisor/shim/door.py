"""The door of a port: a peer proves that it knows a secret, or goes (`supervisor.shim`).

For every port of ours, on the submit host and on nodes. Any local user, and whoever reaches the
machine, can connect. So a connection costs little, has little time to begin its proof, and gives
way to a newer one; one that has begun it, which takes the secret, stays.

Nothing blocks: an epoll(7) has all the descriptors, and is readable when there is something to do.
"""

import _socket as socket  # without its enums, which take some ms
import errno
import os
import select
import sys
import time
from _operator import _compare_digest as compare_digest  # hmac brings OpenSSL

from scrun.supervisor.wire.frames import RANDOM, knock, proof

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    _Address = tuple[bytes, object]  # an address of IPv6, and a port

BACKLOG = 4096
"""Connections that the kernel keeps until they are accepted; others try again after a second."""

MOST_UNKNOWN = 32
"""How many connections may be there that have said nothing right yet, beside those expected."""

TO_KNOCK = 1.0
"""The seconds that a connection has to say something that only who knows the secret can say."""

TO_PROVE = 5.0
"""The seconds that it has for the rest of the proof."""

_AT_ONCE = 64
_PAUSE = 0.1  # seconds until the next try of one that is out of descriptors
_LOOKS = 20  # a look at the tables of sockets may take this part of the time
_LARGEST_TABLE = 1 << 22
_MOST_NAMES = 8
_FORGIVEN = 4  # who dials tries several addresses, and leaves all but one
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_MAPPED = bytes(10) + b"\xff\xff"  # before an address of IPv4 in one of IPv6


class Door:
    """What stands behind a port that listens.

    Attributes:
        strangers: How many connections came from somebody who did not know the secret.
    """

    def __init__(
        self,
        listener: "socket.socket",
        secret: bytes,
        expected: int = 1,
        clock: "Callable[[], float]" = time.monotonic,
        knocks: bool = True,
    ) -> None:
        """Watch it.

        Args:
            listener: Listens, non-blocking; stays the caller's.
            expected: How many will come that know the secret.
            clock: Tells the time, in seconds.
            knocks: Whether those who know the secret show it at once. Shims of older versions
                send random bytes first, as everybody can, and may have to give way.
        """
        self._knocks = knocks
        self.strangers = 0
        self._listener, self._secret, self._clock = listener, secret, clock
        self._most = MOST_UNKNOWN + expected
        self._here: dict[int, _Visitor] = {}  # in the order of their connections
        self._seen: set[bytes] = set()
        self._paused_until = 0.0
        self._looks_from = 0.0
        self._names: dict[str, int] = {}
        self._left = 0
        self._epoll = select.epoll()
        self._epoll.register(listener.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        """Return what is readable when `turn` is to be called."""
        return self._epoll.fileno()

    def patience(self) -> float:
        """Return after how many seconds `turn` is to be called in any case."""
        ends = [visitor.until for visitor in self._here.values()]
        if self._paused_until:
            ends.append(self._paused_until)
        return max(0.0, min(ends) - self._clock()) if ends else float("inf")

    def turn(self) -> "list[tuple[int, bytes]]":
        """Take all that has arrived.

        Returns:
            Who has proved to know the secret: the descriptor of the connection, non-blocking and
            the caller's now, and the random bytes of both ends.
        """
        proved = []
        comes = False
        for fd, _ in self._epoll.poll(0):
            if fd == self._listener.fileno():
                comes = True
            elif fd in self._here:
                proved += self._heard(self._here[fd])
        if self._paused_until and self._clock() >= self._paused_until:
            self._paused_until = 0.0
            self._epoll.modify(self._listener.fileno(), select.EPOLLIN)
            comes = True
        if comes:
            proved += self._accept()
        now = self._clock()
        self._send_away([one for one in self._here.values() if one.until <= now])
        return proved

    def unknown(self) -> int:
        """Return how many are there that have said nothing right yet."""
        return len(self._unknown())

    def who(self) -> str:
        """Return who the strangers were, and how many of each; "" if there was none."""
        if not self.strangers:
            return ""
        named = sorted(self._names.items(), key=lambda item: -item[1])
        return ", ".join(f"{count} of {name}" for name, count in named)

    def close(self) -> None:
        """Close connections that have not proved anything."""
        for visitor in list(self._here.values()):
            self._forget(visitor)
            os.close(visitor.fd)
        self._epoll.close()

    def _accept(self) -> "list[tuple[int, bytes]]":
        proved = []
        for _ in range(_AT_ONCE):
            try:
                fd, address = self._listener._accept()  # type: ignore[attr-defined]
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in _FULL and not self._make_room():
                    self._pause()
                    break
                continue  # it went before it was accepted
            os.set_blocking(fd, False)
            visitor = _Visitor(fd, address, self._clock() + TO_KNOCK)
            self._here[fd] = visitor
            self._epoll.register(fd, select.EPOLLIN)
            proved += self._heard(visitor)  # most have said something by now
            if len(self._unknown()) > self._most:
                self._make_room()
        return proved

    def _unknown(self) -> "list[_Visitor]":
        return [visitor for visitor in self._here.values() if not visitor.is_known]

    def _make_room(self) -> bool:
        """Send the oldest away that has said nothing right; return whether there is one."""
        unknown = self._unknown()
        self._send_away(unknown[:1])
        return bool(unknown)

    def _pause(self) -> None:
        """Accept nothing for a while: we are out of descriptors, and not to be woken for it."""
        self._paused_until = self._clock() + _PAUSE
        self._epoll.modify(self._listener.fileno(), 0)

    def _heard(self, visitor: "_Visitor") -> "list[tuple[int, bytes]]":
        try:
            data = os.read(visitor.fd, RANDOM - len(visitor.said))
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self._has_left(visitor)
            return []
        visitor.said += data
        if len(visitor.said) < RANDOM:
            return []
        said, visitor.said = visitor.said, b""
        if not visitor.both:
            if self._knocks:
                if not self._is_knock(said) or said in self._seen:
                    self._send_away([visitor])
                    return []
                self._seen.add(said)
                visitor.is_known = True
            own = os.urandom(RANDOM)
            visitor.both, visitor.until = said + own, self._clock() + TO_PROVE
            self._say(visitor, own)
            return []
        if not compare_digest(said, proof(self._secret, b"shim", visitor.both)):
            self._send_away([visitor])
            return []
        if not self._say(visitor, proof(self._secret, b"supervisor", visitor.both)):
            return []
        self._forget(visitor)
        return [(visitor.fd, visitor.both)]

    def _is_knock(self, said: bytes) -> bool:
        return compare_digest(said, knock(self._secret, said[: RANDOM // 2]))

    def _say(self, visitor: "_Visitor", words: bytes) -> bool:
        try:
            if os.write(visitor.fd, words) == len(words):
                return True
        except OSError:
            pass
        self._has_left(visitor)
        return False

    def _has_left(self, visitor: "_Visitor") -> None:
        """Close ended connections: a shim's other attempts, when one has succeeded."""
        if not visitor.both:
            self._left += 1
            if self._left > _FORGIVEN or visitor.said:
                self._send_away([visitor])
                return
        self._forget(visitor)
        os.close(visitor.fd)

    def _send_away(self, visitors: "list[_Visitor]") -> None:
        """Close connections of strangers, and count them."""
        users: dict[tuple[_Address, _Address], int] = {}
        now = self._clock()
        if visitors and now >= self._looks_from:
            users = _users_of_sockets(_TABLES)
            done = self._clock()
            self._looks_from = done + (done - now) * _LOOKS
        for visitor in visitors:
            self.strangers += 1
            name = visitor.name(users)
            if name not in self._names and len(self._names) >= _MOST_NAMES:
                name = "others"
            self._names[name] = self._names.get(name, 0) + 1
            self._forget(visitor)
            os.close(visitor.fd)

    def _forget(self, visitor: "_Visitor") -> None:
        self._epoll.unregister(visitor.fd)
        del self._here[visitor.fd]


class _Visitor:
    """A connection.

    Attributes:
        until: When it has to have said more.
        said: What it has said of the next part.
        both: The random bytes of both ends, once it has sent the right ones.
        is_known: Whether these showed that it knows the secret.
    """

    def __init__(self, fd: int, address: "tuple[object, ...]", until: float) -> None:
        self.fd, self.until = fd, until
        self.said = self.both = b""
        self.is_known = False
        self._address = address

    def name(self, users: "dict[tuple[_Address, _Address], int]") -> str:
        """Return its user, if that is known, else where it comes from."""
        host = str(self._address[0])
        if host.startswith("::ffff:"):
            host = host[7:]
        try:
            ours = socket.socket(fileno=os.dup(self.fd))
            try:
                here, there = _packed(ours.getsockname()), _packed(self._address)
            finally:
                ours.close()
        except OSError:
            return host
        user = users.get((there, here))
        return host if user is None else f"user {user}"


def _packed(address: "tuple[object, ...]") -> "_Address":
    """Return an address, as accept(2) gives it, as one of IPv6, and its port.

    Raises:
        OSError: It is not an address.
    """
    host = str(address[0]).partition("%")[0]
    if ":" in host:
        return socket.inet_pton(socket.AF_INET6, host), address[1]
    return _MAPPED + socket.inet_pton(socket.AF_INET, host), address[1]


def _users_of_sockets(tables: "Iterable[str]") -> "dict[tuple[_Address, _Address], int]":
    """Return whose the connections of this machine are, by both of their ends (proc(5))."""
    found = {}
    for path in tables:
        try:
            with open(path, "rb") as file:
                lines = file.read(_LARGEST_TABLE).splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) > 9 and words[9] != b"0":  # else its process has closed it: no user
                found[_of_table(words[1]), _of_table(words[2])] = int(words[7])
    return found


def _of_table(text: bytes) -> "_Address":
    """Return an address of those tables: words of 32 bits in the order of this machine."""
    host, _, port = text.decode().partition(":")
    packed = bytes.fromhex(host)
    if sys.byteorder == "little":
        packed = b"".join(packed[at : at + 4][::-1] for at in range(0, len(packed), 4))
    return (packed if len(packed) == 16 else _MAPPED + packed), int(port, 16)


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
