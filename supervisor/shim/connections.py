"""Connects to ports of containers, and carries the bytes (see the package's docstring)."""

import _signal as signal  # without enum, which takes longer than hello
import _socket as socket  # without its enums, which take some ms
import errno
import os
import struct
import sys

from .loop import WRITE
from .network import (
    LOOPBACKS,
    OUTSIDE,
    SAME,
    begin_to_connect,
    elsewhere,
    end_to_connect,
    host,
    outside,
    serve,
    socket_of,
)
from .processes import descendants, kill_quietly
from .runtime import CallRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .children import Children
    from .containers import Reply
    from .loop import Loop
    from .streams import InputStream, OutputStream, ShimStreams
    from .targets import NodeProcess

_PATIENCE = 5  # seconds, to enter a network
_PEER = struct.Struct("iii")  # pid, uid, gid: unix(7), SO_PEERCRED


class Connections:
    """The connections to the containers of this shim, by the numbers of their streams."""

    def __init__(self, loop: "Loop", children: "Children", streams: "ShimStreams") -> None:
        self.loop, self.streams = loop, streams
        self._children = children
        self._networks: dict[str, _Network | None] = {}  # None: ours
        self._given: list[tuple[str, _Network]] = []  # with their targets
        self._open: dict[int, _Connection] = {}

    def connect(
        self, target: "NodeProcess", port: int, number: int, outside: bool, reply: "Reply"
    ) -> None:
        """Connect to a port of a container.

        Args:
            number: That of the stream which carries the bytes in both directions.
            outside: Whether for a client that is not to be taken for one on its loopback.

        Raises:
            CallRefused: There is such a stream.
            OSError: Its network cannot be entered.
        """
        if number in self._open:
            raise CallRefused(f"stream {number} exists already")
        network = self._networks.get(target.id)
        if target.id not in self._networks or (network is not None and network.is_over):
            network = self._networks[target.id] = self._entered(target)
        addresses = OUTSIDE if outside and network is not None else LOOPBACKS
        made = _Connection(self, number, reply, network, addresses, port)
        self._open[number] = made
        made.connect()

    def _entered(self, target: "NodeProcess") -> "_Network | None":
        pid = elsewhere([target.pid, *descendants(target.pid)])
        return None if pid is None else _Network(self._children, pid)

    def reach(self, target: "NodeProcess", place: str, supervisor: int, name: str) -> str:
        """Let a supervisor on this machine make and connect sockets in a container's network.

        It gets a line to a process that makes them (`network.serve`), which ends with the line.

        Args:
            place: Where the supervisor is (`network.host` of `SAME`).
            supervisor: Its pid.
            name: That of its socket.

        Returns:
            "": it is elsewhere; "own": the network is ours, and so the supervisor's; "line".

        Raises:
            OSError: The network cannot be entered, or the line not be given.
        """
        if place != host(SAME):
            return ""
        with_it = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with_it.connect(b"\0" + name.encode())
            peer = with_it.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            if _PEER.unpack(peer)[:2] != (supervisor, os.geteuid()):
                return ""  # somebody else has taken a dead one's name
            network = self._entered(target)
            if network is None:
                return "own"
            self._given = [(whose, one) for whose, one in self._given if not one.is_over]
            self._given.append((target.id, network))
            network.give(with_it)
            return "line"
        finally:
            with_it.close()

    def attach(self, number: int, sock: "socket.socket", reply: "Reply") -> None:
        """Carry the bytes of a connection that a container has made; the socket is ours then.

        Raises:
            CallRefused: There is such a stream.
        """
        if number in self._open:
            sock.close()
            raise CallRefused(f"stream {number} exists already")
        self._open[number] = made = _Connection(self, number, reply)
        made.carry(sock)

    def disconnect(self, number: int) -> None:
        """Close a connection, if it is there."""
        found = self._open.pop(number, None)
        if found is not None:
            found.close()

    def ended(self, target: str) -> None:
        """Make no more sockets for a container."""
        network = self._networks.pop(target, None)
        if network is not None:
            network.close()
        for whose, given in self._given:
            if whose == target:
                given.kill()

    def disconnect_all(self) -> None:
        """Close them: whoever asked for them has gone."""
        for number in list(self._open):
            self.disconnect(number)


class _Network:
    """A child in the network namespace of a container, which makes sockets until `close`."""

    def __init__(self, children: "Children", pid: int) -> None:
        self.is_over = False
        self._line, theirs = socket.socketpair()
        try:
            self._pid = children.fork(lambda: serve(pid, theirs), self._over, (theirs.fileno(),))
            timeout = _PATIENCE.to_bytes(8, "little") + bytes(8)  # struct timeval
            self._line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        finally:
            theirs.close()
        self._entered = False
        self._ordered = 0  # the family of the socket that is on its way

    def _over(self, _status: int) -> None:
        """Note that it has ended, or was killed."""
        self.is_over = True
        self.close()

    def close(self) -> None:
        self._line.close()

    def give(self, sock: "socket.socket") -> None:
        """Give the line away to who is at the other end of a socket."""
        rights = self._line.fileno().to_bytes(4, sys.byteorder)
        try:
            sock.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        finally:
            self.close()

    def kill(self) -> None:
        """End it, whoever has the line."""
        if not self.is_over:
            kill_quietly(self._pid, signal.SIGKILL)

    def made(self, family: int) -> "socket.socket":
        if not self._entered:
            self._entered = bool(self._line.recv(1))
        if family != self._ordered:
            if self._ordered:
                self._take(self._ordered).close()
            self._line.sendall(bytes([family]))
        sock = self._take(family)
        self._line.sendall(bytes([family]))  # so that the next connection need not wait for one
        self._ordered = family
        return sock

    def _take(self, family: int) -> "socket.socket":
        self._ordered = 0
        got = self._line.recvmsg(1, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC)
        return socket.socket(family, socket.SOCK_STREAM, 0, socket_of(*got))


class _Connection:
    """One connection. What the client sends is taken from the beginning on."""

    def __init__(
        self,
        connections: Connections,
        number: int,
        reply: "Reply",
        network: "_Network | None" = None,
        addresses: "Sequence[tuple[int, str]]" = (),
        port: int = 0,
    ) -> None:
        self._connections, self._number, self._reply = connections, number, reply
        self._loop, self._streams = connections.loop, connections.streams
        self._network, self._port = network, port
        self._left = list(addresses)
        self._failed = 0
        self._sock: socket.socket | None = None
        self._source: OutputStream | None = None
        self._sink: InputStream = self._streams.sink(number, -1, self._end)
        self._directions = 2

    def connect(self) -> None:
        """Connect to the next address; after the last, say why the first one failed."""
        while self._left:
            family, address = self._left.pop(0)
            try:
                sock = self._made(family)
            except OSError as error:
                self._failed = self._failed or error.errno or errno.EIO
                continue
            try:
                if not address:
                    (_, address), *self._left = outside(sock.fileno())
                sock.setblocking(False)
                is_connected = begin_to_connect(sock, address, self._port)
            except OSError as error:
                sock.close()
                self._failed = self._failed or error.errno or errno.EIO
                continue
            if is_connected:
                self.carry(sock)
            else:
                self._sock = sock
                self._loop.watch(sock.fileno(), WRITE, self._connected)
            return
        self._fail(os.strerror(self._failed))

    def _made(self, family: int) -> "socket.socket":
        if self._network is not None:
            return self._network.made(family)
        return socket.socket(family, socket.SOCK_STREAM)

    def _connected(self, _events: int) -> None:
        sock, self._sock = self._sock, None
        assert sock is not None
        self._loop.forget(sock.fileno())
        try:
            end_to_connect(sock)
        except OSError as error:
            sock.close()
            self._failed = self._failed or error.errno or errno.EIO
            self.connect()
            return
        self.carry(sock)

    def carry(self, sock: "socket.socket") -> None:
        """Carry its bytes: it is connected."""
        self._sock = sock
        try:
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            there = os.dup(sock.fileno())
            self._source = self._streams.source(self._number, there, ended=self._over)
            there = os.dup(sock.fileno())
        except (OSError, ValueError) as error:  # no descriptor is left
            self._fail(str(error))
            return
        self._source.let_go()  # no successor of the supervisor asks for it
        self._sink.open(there, terminal=False)
        self._reply({})  # the server has something to do meanwhile
        self._source.begin()

    def _fail(self, why: str) -> None:
        self._connections.disconnect(self._number)
        self._reply({"error": why})

    def _end(self) -> None:
        """Tell the server that this was all."""
        if self._sock is not None:
            try:
                self._sock.shutdown(socket.SHUT_WR)
            except OSError:  # it has gone
                pass
        self._over()

    def _over(self) -> None:
        """Forget it when both directions have ended."""
        self._directions -= 1
        if not self._directions:
            self._connections.disconnect(self._number)

    def close(self) -> None:
        """Close it, whatever is on its way."""
        sock, self._sock = self._sock, None
        if self._source is not None:
            self._source.close()
        self._sink.close()
        if sock is not None:
            self._loop.forget(sock.fileno())
            sock.close()
