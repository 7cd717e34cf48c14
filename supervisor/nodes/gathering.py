"""The shims of a step of several tasks, each over a connection of its own.

srun sends what it reads to all tasks, and mixes what they write. So all get the same call and the
same secret, and each then says who it is over a direct connection.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import trio

from scrun.supervisor.core.nurseries import until, unwrapped
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.nodes.beginning import Direct, begin_call
from scrun.supervisor.nodes.connection import Hello, Shim, ShimLost, carried
from scrun.supervisor.nodes.dialing import Listener
from scrun.supervisor.nodes.link import ShimLink, direct_link
from scrun.supervisor.wire.frames import CALL, RANDOM, frame

_PATIENCE = 5.0
_PIECE = 1 << 16


class Rank:
    """A task and its shim.

    Attributes:
        number: The task's, SLURM_PROCID.
        hello: What that said first.
    """

    def __init__(self, shim: Shim, hello: Hello, number: int) -> None:
        self.number = number
        self.shim = shim
        self.hello = hello
        self._dismissed = trio.Event()

    @property
    def node(self) -> str:
        """The name of its node, for Slurm."""
        return self.hello.environment.get("SLURMD_NODENAME") or self.hello.node

    @property
    def is_dismissed(self) -> bool:
        """Whether it has ended, or will soon, because its container has."""
        return self._dismissed.is_set()

    def dismiss(self) -> None:
        """Close the connection: the shim, and with it the task, ends as its container did."""
        self._dismissed.set()

    async def serve(self) -> None:
        """Wait until it has gone or is dismissed."""
        async with until(self._dismissed.wait):
            await self.shim.lost.wait()


class Gathering:
    """The ranks that have connected.

    Attributes:
        complete: Set when all are there.
    """

    def __init__(self, to_srun: int, count: int, journal: Journal) -> None:
        """`to_srun` is the pipe to srun's standard input; `end` closes it."""
        self.complete = trio.Event()
        self._to_srun = to_srun
        self._count = count
        self._journal = journal
        self._ranks: dict[int, Rank] = {}

    @property
    def ranks(self) -> list[Rank]:
        """The ranks, by their numbers."""
        return [rank for _, rank in sorted(self._ranks.items())]

    def end(self) -> None:
        """Let the present shims end; later ones are still taken."""
        if self._to_srun >= 0:
            os.close(self._to_srun)
            self._to_srun = -1

    async def call(self, direct: Direct, nursery: trio.Nursery) -> None:
        """Call all ranks, and take their connections until they are there.

        Raises:
            NotReached: No port is free.
            OSError: Sockets cannot be made.
        """
        secret = os.urandom(RANDOM)
        most = 2 * self._count  # one that was lost may connect again
        async with Listener(direct.ports, secret, self._journal, most).listening() as listener:
            how = direct._replace(alone=0, patience=_PATIENCE)
            call = begin_call(listener.port, secret, how, needed=True)
            with suppress(BrokenPipeError):  # srun has ended, which others notice
                os.write(self._to_srun, frame(CALL, 0, msgspec.json.encode(call)))
            async with until(self.complete.wait):
                while True:
                    link = direct_link(await listener.connected(), direct.sealing)
                    nursery.start_soon(self._take, link)

    async def _take(self, link: ShimLink) -> None:
        try:
            async with carried(Shim, link, self._journal) as shim:
                hello = await shim.hello()
                if not 0 <= hello.rank < self._count or hello.rank in self._ranks:
                    self._journal.write("verbose", f"{hello.node}: not expected: {hello.rank}")
                    return
                rank = self._ranks[hello.rank] = Rank(shim, hello, hello.rank)
                if len(self._ranks) == self._count:
                    self.complete.set()
                await rank.serve()
        except ShimLost as error:
            self._journal.write("verbose", str(error))


@asynccontextmanager
async def gathered(
    to_srun: int, from_srun: int, count: int, direct: Direct, journal: Journal
) -> AsyncIterator[Gathering]:
    """Call all shims of a step; they end when the block is left.

    Args:
        to_srun: The pipe to srun's standard input; closed at the end, and so is the next.

    Raises:
        NotReached: No port is free.
        OSError: Sockets cannot be made.
    """
    gathering = Gathering(to_srun, count, journal)
    try:
        async with unwrapped() as nursery:
            nursery.start_soon(_drain, from_srun)
            nursery.start_soon(gathering.call, direct, nursery)
            yield gathering
            nursery.cancel_scope.cancel()
    finally:
        gathering.end()
        os.close(from_srun)


async def _drain(fd: int) -> None:
    """Read what all of them say at once, and what a site's scripts write: it is for nobody."""
    os.set_blocking(fd, False)
    while True:
        try:
            if not os.read(fd, _PIECE):
                return
        except BlockingIOError:
            await trio.lowlevel.wait_readable(fd)
        await trio.lowlevel.checkpoint()
