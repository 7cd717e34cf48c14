"""Takes over from the supervisors before this one that still run.

Those are an older version's, and one that has given its name away (`scrun supervisor restart`).
Each of them gives up its containers when it can (`supervisor.daemon.retirement`), and exits.
"""

import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from scrun.core.supervisors import is_newer, parts
from scrun.protocol import wire
from scrun.supervisor.core.inheritance import KeeperLine, close_all
from scrun.supervisor.core.nurseries import bulkhead
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.daemon.retirement import TAKEN, received_line
from scrun.supervisor.keeper.main import END
from scrun.supervisor.log.supervisor_log import log


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
