"""Our ends of a container's standard input, output and error."""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from tests.stress.chaos.children import Stream


class Ends:
    """What an engine holds of a container.

    Attributes:
        given: The descriptors for `create`: standard input, output and error; closed by `give`.
        console: The path for `--console-socket`, if the container has a terminal.
        stdin: To write to, or None: no terminal has come.
        stdout: What the container prints, likewise.
        stderr: And its standard error; what `create` says comes there too.
    """

    def __init__(self, directory: Path, nursery: trio.Nursery, *, terminal: bool) -> None:
        err, their_err = os.pipe()
        self._nursery = nursery
        self.stderr = Stream(err)
        self.stdin: Stream | None = None
        self.stdout: Stream | None = None
        self.console: Path | None = None
        self._listener: socket.socket | None = None
        if terminal:
            self.console = directory / "console"
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(str(self.console))
            self._listener.listen(1)
            self._listener.setblocking(False)
            self.console.chmod(0o666)
            null = os.open("/dev/null", os.O_RDWR)
            self.given = (null, os.dup(null), their_err)
        else:
            their_in, in_ = os.pipe()
            out, their_out = os.pipe()
            self.given = (their_in, their_out, their_err)
            self.stdin, self.stdout = Stream(in_), Stream(out)
            nursery.start_soon(self.stdout.read)
        nursery.start_soon(self.stderr.read)

    def give(self) -> None:
        """Close what somebody else has by now."""
        for fd in self.given:
            os.close(fd)

    def take_terminal(self) -> None:
        """Take the terminal over that `create` has sent, if it has."""
        if self._listener is None:
            return
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        with connection:
            connection.setblocking(False)
            try:
                _, fds, _, _ = socket.recv_fds(connection, 4096, 4)
            except BlockingIOError:
                return
        for fd in fds[:1]:
            self.stdin = self.stdout = Stream(fd)
            self._nursery.start_soon(self.stdout.read)

    async def aclose(self) -> None:
        """Close all of them."""
        if self._listener:
            self._listener.close()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream:
                await stream.aclose()


@asynccontextmanager
async def ends(directory: Path, *, terminal: bool) -> AsyncIterator[Ends]:
    """Hold the ends of a container for as long as a block lasts."""
    async with trio.open_nursery() as nursery:
        held = Ends(directory, nursery, terminal=terminal)
        try:
            yield held
        finally:
            await held.aclose()
            nursery.cancel_scope.cancel()
