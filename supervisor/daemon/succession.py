"""Takes over from the supervisors before this one that still run.

Those are an older version's, and one that has given its name away (`scrun supervisor restart`).
Each of them gives up its containers when it can (`Retirement`), and exits.

That is what `scrun supervisor restart` and a newer version are about. The successor gets what a
killed supervisor would have left (`supervisor.core.deposits`), at a moment when nothing would be
lost by that: no request is being answered, no program of `exec` runs that would end, and every
container can be adopted. Until then we go on.

What it gets is our line to the keeper: it gives all to the successor, and calls another one if
that is killed before it has all in its own deposits.
"""

import errno
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NoReturn, Protocol

import trio

from scrun.core.rights import receive_fds, send_fds
from scrun.core.supervisors import is_newer, parts
from scrun.protocol import wire
from scrun.supervisor.containers.containers import Containers
from scrun.supervisor.core.inheritance import KeeperLine, close_all
from scrun.supervisor.core.nurseries import bulkhead, unwrapped
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.keeper.main import END
from scrun.supervisor.log.supervisor_log import log

_TAKEN = 10.0
TAKEN = b"\1"
"""What the successor answers."""


class Retires(Protocol):
    """The server that retires."""

    @property
    def requests(self) -> int: ...

    async def changed(self) -> None:
        """Wait until that, or a container, may have changed."""

    def step_aside(self) -> None:
        """Serve under another name, so that a successor can have ours."""

    def leave(self) -> NoReturn:
        """Exit, and leave the containers as they are."""


class Retirement:
    """Gives them to the successor that asks.

    Attributes:
        lasting: How many requests may be cut off: successors that wait, and readers of a log.
        going_on: Unset while the answer of one decides whether we end: nothing begins meanwhile.
    """

    def __init__(self, containers: Containers, server: Retires) -> None:
        self.lasting = 0
        self.going_on = trio.Event()
        self.going_on.set()
        self._containers = containers
        self._server = server
        self._by_force = False

    def step_aside(self, *, force: bool) -> dict[str, str]:
        """Give up our name; with `force` also end what holds us up. Raises OSError.

        Returns the containers that another supervisor cannot take over now, and why.
        """
        self._server.step_aside()
        staying = self._containers.leaving.staying()
        if force:
            self._by_force = True
            self._containers.leaving.end_unadoptable()
        return staying

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Count a request that we need not wait for."""
        self.lasting += 1
        try:
            yield
        finally:
            self.lasting -= 1

    async def give(self, connection: trio.socket.SocketType) -> None:
        """Give the successor at the other end all that it needs, and exit, unless it has gone."""
        with self.cut_off():
            while not self._may_go():
                if not await self._may_go_later(connection):
                    return
            self.going_on = trio.Event()
            try:
                if await self._was_taken(connection):
                    self._server.leave()
            finally:
                self.going_on.set()

    def _may_go(self) -> bool:
        containers = self._containers
        return (
            self.going_on.is_set()
            and self._server.requests <= self.lasting
            and not containers.successor.at_work
            and containers.deposits.are_safe
            and not containers.leaving.staying(with_programs=not self._by_force)
        )

    async def _may_go_later(self, connection: trio.socket.SocketType) -> bool:
        """Wait for a change; return whether the successor still waits, too."""
        waits = True
        async with unwrapped() as nursery:

            @nursery.start_soon
            async def watch() -> None:
                nonlocal waits
                await trio.lowlevel.wait_readable(connection)  # it says nothing yet: its end
                waits = False
                nursery.cancel_scope.cancel()

            await self._server.changed()
            nursery.cancel_scope.cancel()
        return waits

    async def _was_taken(self, connection: trio.socket.SocketType) -> bool:
        line = self._containers.deposits.line
        with socket.socket(fileno=os.dup(connection.fileno())) as sock:
            send_fds(sock, b"\0", [] if line is None else line.fds)  # the first answer: it fits
        with trio.move_on_after(_TAKEN):
            return await connection.recv(1) == TAKEN
        return False


def received_line(sock: socket.socket) -> list[int] | None:
    """Receive what `Retirement.give` sends: its line to the keeper, [] without one; None: nothing.

    Raises OSError if the supervisor has gone; or we are out of descriptors.
    """
    answer, line, whole = receive_fds(sock, 1, 2)
    if not whole:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return line if answer == b"\0" else None


class Succession:
    """Takes over, in the background, from each of them."""

    def __init__(
        self,
        root: str,
        name: str,
        adopt: Callable[[KeeperLine], Awaitable[None]],
        nursery: trio.Nursery,
    ) -> None:
        self._root = root
        self._name = name
        self._adopt = adopt
        self._nursery = nursery
        self._asked: set[str] = set()
        self._waiting = trio.lowlevel.ParkingLot()

    def begin(self) -> None:
        for other in predecessors(self._root, self._name):
            if other not in self._asked:
                self._asked.add(other)
                what = f"taking over from {other}"
                self._nursery.start_soon(bulkhead, what, partial(self._ask, other))

    async def finished(self) -> None:
        """Wait until those that were asked have ended, and what they had left was adopted."""
        while self._asked:
            await self._waiting.park()

    async def _ask(self, other: str) -> None:
        try:
            await self._ask_once(other)
        finally:
            self._asked.discard(other)
            self._waiting.unpark_all()

    async def _ask_once(self, other: str) -> None:
        try:
            sock = await in_thread(wire.connect_supervisor, self._root, other)
        except OSError:  # it has ended
            return
        with socket.socket(fileno=sock.detach()) as plain:
            plain.setblocking(False)
            try:
                await self._take_over(plain)
            except OSError:
                pass  # it has ended by itself

    async def _take_over(self, sock: socket.socket) -> None:
        sock.send(wire.frame([b"give"]))  # a few bytes: this does not block
        await trio.lowlevel.wait_readable(sock)
        fds = received_line(sock)
        if fds is None:
            return  # an older version, which ends with its containers
        try:
            sock.send(TAKEN)
            await trio.lowlevel.wait_readable(sock)
            if sock.recv(1):
                return
            if fds:
                with KeeperLine(fds) as line:
                    await self._adopt(line)
                    line.send(END)
        finally:
            close_all(fds)
        log.info("has taken over")


def predecessors(root: str, name: str) -> list[str]:
    """Return the names of the supervisors from which this one takes over."""
    base, version, _ = parts(name)
    found = []
    for other in os.listdir(root):
        its_base, its_version, is_aside = parts(other)
        is_before = is_aside if its_version == version else is_newer(version, its_version)
        if base and its_base == base and other != name and is_before:
            found.append(other)
    return sorted(found)
