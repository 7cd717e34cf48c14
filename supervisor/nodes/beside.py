"""Connections to a container on this machine, by sockets that were made in its network."""

import errno
import fcntl
import os
import socket
from contextlib import suppress
from typing import Self

import trio

from scrun.core.errors import EngineError
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.shim.network import (
    LOOPBACKS,
    OUTSIDE,
    begin_to_connect,
    end_to_connect,
    outside,
    socket_of,
)

_PATIENCE = 5.0
_PIECE = 1 << 20
RIGHTS = socket.CMSG_LEN(4)
"""The bytes that a descriptor takes beside a message."""


class Beside:
    """Reaches the network of a container on this machine.

    Attributes:
        is_over: Whether who makes sockets in that network has gone.
    """

    def __init__(self, line: socket.socket | None, *, outside: bool = False) -> None:
        """Have a descriptor for moving bytes.

        Args:
            line: Leads to `shim.network.serve`; closed with this. None: the network is ours.
            outside: See `Job.reaching`.
        """
        self.is_over = False
        self._line = None if line is None else trio.socket.from_stdlib_socket(line)
        self._lock = trio.Lock()
        self._ordered = 0  # the family of the socket that is on its way
        self._addresses = OUTSIDE if outside and line is not None else LOOPBACKS
        self._mover = _Mover()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._mover.close()
        if self._line is not None:
            self._line.close()

    async def enter(self) -> None:
        """Wait until sockets can be made; EngineError if they cannot."""
        self.is_over = True
        with trio.move_on_after(_PATIENCE):
            self.is_over = self._line is not None and not await self._line.recv(1)
        if self.is_over:
            raise EngineError("its network cannot be entered")

    async def reach(self, client: trio.socket.SocketType, port: int) -> None:
        """Carry bytes, see `contracts.networks.Reach`."""
        with await self._connected(port) as server:
            await self._mover.carry(client, server)

    async def _connected(self, port: int) -> trio.socket.SocketType:
        """Connect to the first address that takes it, or raise the OSError of the first one."""
        errors: list[OSError] = []
        left = [*self._addresses]
        while left:
            family, address = left.pop(0)
            try:
                server = await self._made(family)
                try:
                    if not address:
                        (_, address), *left = outside(server.fileno())
                    server.setblocking(False)
                    if not begin_to_connect(server, address, port):
                        await trio.lowlevel.wait_writable(server)
                        end_to_connect(server)
                except BaseException:
                    server.close()
                    raise
            except OSError as error:
                errors.append(error)
            else:
                return trio.socket.from_stdlib_socket(server)
        raise OSError(errors[0].errno, os.strerror(errors[0].errno or errno.EIO))

    async def _made(self, family: int) -> socket.socket:
        if self._line is None:
            return socket.socket(family)
        with trio.move_on_after(_PATIENCE):  # its job may be suspended
            async with self._lock:
                if self._ordered not in (0, family):
                    (await self._take(self._line)).close()
                if not self._ordered:
                    self._order(self._line, family)
                made = await self._take(self._line)
                self._order(self._line, family)  # so that the next connection need not wait
                return made
        raise EngineError(f"its node has not answered for {_PATIENCE:g} s")

    def _order(self, line: trio.socket.SocketType, family: int) -> None:
        self._ordered = family
        with suppress(OSError):  # it has gone, which who waits for the socket is told
            os.write(line.fileno(), bytes([family]))

    async def _take(self, line: trio.socket.SocketType) -> socket.socket:
        got: tuple[bytes, list[tuple[int, int, bytes]], int, object] = (b"", [], 0, None)
        with suppress(ConnectionResetError):  # it has gone before it read an order
            got = await line.recvmsg(1, RIGHTS, socket.MSG_CMSG_CLOEXEC)
        self._ordered, self.is_over = 0, not got[0]
        return socket.socket(fileno=socket_of(*got))


class _Mover:
    """Moves bytes between sockets without a copy (splice(2)).

    That needs a pipe between them, which is empty whenever `move` does not run: so one does for
    all connections, and a user may have few (pipe(7)).
    """

    def __init__(self) -> None:
        self._readable, self._writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with suppress(OSError):  # the user has too much in pipes
            fcntl.fcntl(self._writable, fcntl.F_SETPIPE_SZ, _PIECE)

    def close(self) -> None:
        os.close(self._readable)
        os.close(self._writable)

    def move(self, source: int, sink: int) -> bytes | None:
        """Move what has arrived; return what the sink did not take, or None at the end.

        Raises:
            BlockingIOError: Nothing has arrived.
            ConnectionError: One end has reset the connection.
        """
        left = os.splice(source, self._writable, _PIECE, flags=os.SPLICE_F_NONBLOCK)
        if not left:
            return None
        try:
            while left:
                left -= os.splice(self._readable, sink, left, flags=os.SPLICE_F_NONBLOCK)
        except BlockingIOError:
            pass
        finally:
            rest = os.read(self._readable, left) if left else b""
        return rest

    async def carry(self, client: trio.socket.SocketType, server: trio.socket.SocketType) -> None:
        """Carry bytes until both directions have ended; EngineError if an end has reset it."""
        try:
            async with unwrapped() as nursery:
                nursery.start_soon(self._one_way, client, server)
                nursery.start_soon(self._one_way, server, client)
        except* (ConnectionError, trio.BrokenResourceError):
            raise EngineError("the connection was reset") from None

    async def _one_way(self, source: trio.socket.SocketType, sink: trio.socket.SocketType) -> None:
        stream = trio.SocketStream(sink)
        while True:
            try:
                rest = self.move(source.fileno(), sink.fileno())
            except BlockingIOError:
                await trio.lowlevel.wait_readable(source)
                continue
            if rest is None:
                await stream.send_eof()
                return
            await stream.send_all(rest)
