"""The supervisor's end of the socket to a worker: frames, and descriptors beside them."""

import os
import socket
import struct
from collections import deque

import trio

from scrun.protocol.wire import LIMIT, frame

_MOST = 16  # descriptors not taken yet; a worker sends one and waits
_ROOM = socket.CMSG_SPACE(_MOST * 4)


class Hangup(Exception):
    """The worker is gone."""


class Channel:
    """Sends and receives frames of `protocol.wire`; owns the socket and received descriptors."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = trio.socket.from_stdlib_socket(sock)
        self._data = bytearray()
        self._fds: deque[int] = deque()

    async def send(self, *fields: str | bytes) -> None:
        """Send one frame.

        Raises:
            Hangup: The worker is gone.
        """
        rest = memoryview(frame([os.fsencode(field) for field in fields]))
        try:
            while rest:
                rest = rest[await self._sock.send(rest) :]
        except OSError as error:
            raise Hangup from error

    async def receive(self) -> list[bytes]:
        """Wait for one frame.

        Raises:
            Hangup: The worker is gone, or sent something that is not a frame.
        """
        while True:
            length = 4 + int.from_bytes(self._data[:4], "big")
            if 4 <= len(self._data) >= length:
                body = bytes(self._data[4:length])
                del self._data[:length]
                return body.split(b"\0")
            if len(self._data) >= 4 and length > LIMIT:
                raise Hangup
            await self._receive_more()

    async def _receive_more(self) -> None:
        try:
            part, ancillary, _, _ = await self._sock.recvmsg(65536, _ROOM, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise Hangup from error
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(content) // 4 * 4
                self._fds.extend(fd for (fd,) in struct.iter_unpack("i", content[:whole]))
        if not part or len(self._fds) > _MOST:
            raise Hangup
        self._data += part

    def take_descriptor(self) -> int:
        """Return the descriptor that came with the last frame; the caller closes it.

        Raises:
            Hangup: No descriptor came.
        """
        if not self._fds:
            raise Hangup
        return self._fds.popleft()

    def close(self) -> None:
        """Close the socket and the descriptors that nobody took."""
        self._sock.close()
        while self._fds:
            os.close(self._fds.popleft())
