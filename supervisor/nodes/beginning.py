"""How a shim begins: it is told where we listen, connects there, and gets its code.

Nodes can connect to the submit host in any case: slurmstepd does, for srun's streams. What cannot
goes over srun, which is slower.

With a step of several tasks each shim has a connection of its own: srun sends what it reads to all
tasks, and mixes what they write. So all get the same call and the same secret, and each then says
who it is over a direct connection.
"""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, NamedTuple

import msgspec
import trio

from scrun.supervisor.core.nurseries import until, unwrapped
from scrun.supervisor.core.own_key import own_key
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.nodes.code import sums
from scrun.supervisor.nodes.connection import Shim, ShimLost, carried
from scrun.supervisor.nodes.dialing import Listener, NotReached, Unreached
from scrun.supervisor.nodes.link import SEALING, Sealing, ShimLink, direct_link
from scrun.supervisor.nodes.messages import Hello
from scrun.supervisor.wire.frames import CALL, RANDOM, frame

ALONE = 600.0
"""How long a shim waits for a successor, in seconds, if nobody says otherwise."""

LONGEST_ALONE = 2e6
"""The longest; a shim counts milliseconds, in 31 bits."""

_PATIENCE, _TASKS_PATIENCE = 2.0, 5.0
_PIECE = 1 << 16
_KILL_WAIT = 30.0  # slurm.conf(5) has it as default

_unreached = Unreached()


class Direct(NamedTuple):
    """Whether and how a shim may connect to us, instead of using srun's streams.

    Attributes:
        allowed: Not where Slurm encrypts its own connections: these are in plain text.
        ports: The range of our ports, as "60001-63000" (SrunPortRange), or None for any.
        alone: How long it waits for a successor when we have died, in seconds.
        patience: How long it tries to connect, in seconds.
        kill_wait: KillWait of slurm.conf(5), in seconds.
        reaches_all: Whether Slurm's signals for a step reach all its processes.
        told: The signals that ended an earlier shim of the job as it began.
        sealing: How the frames of the connection are sealed.
    """

    allowed: bool
    ports: str | None
    alone: float = ALONE
    patience: float = _PATIENCE
    kill_wait: float = _KILL_WAIT
    reaches_all: bool = False
    told: tuple[int, ...] = ()
    sealing: Sealing = SEALING


def begin_call(
    port: int, secret: bytes, direct: Direct, runtime: str = "", *, needed: bool = False
) -> dict[str, Any]:
    """Return the call `begin` (see `supervisor.shim`), which has less than 1 KiB.

    Call `code.variables` before. We listen at `port`, or nowhere with 0. `runtime` is the one that
    another shim on its node has tried, or "". `needed`: it cannot do without the connection.
    """
    return {
        "verb": "begin",
        "port": port,
        "secret": secret.hex(),
        "host": socket.gethostname(),
        "patience": direct.patience,
        "alone": min(direct.alone, LONGEST_ALONE),
        "runtime": runtime,
        "needed": needed,
        "kill_wait": direct.kill_wait,
        "reaches_all": direct.reaches_all,
        "told": direct.told,
        "key": own_key().hex(),
        "code": sums(),
        "seal_streams": direct.sealing.streams,
        "quiet": direct.sealing.quiet,
        "gmac": direct.sealing.gmac,
    }


async def begun(shim: Shim, direct: Direct, journal: Journal, place: str, runtime: str) -> Hello:
    """Call a shim; return what it says first. Where it cannot connect, it talks over srun.

    `place` is the name of its node, or "" for an unknown one. Raises ShimLost if it ended, or
    never began.
    """
    why = "" if direct.allowed else "Slurm encrypts them"
    if not why and place in _unreached:
        why = "as before"
    secret = os.urandom(RANDOM)
    listener: Listener | None = None
    async with AsyncExitStack() as stack:
        port = 0
        if not why:
            try:
                listening = Listener(direct.ports, secret, journal).listening()
                listener = await stack.enter_async_context(listening)
                port = listener.port
            except (NotReached, OSError) as error:
                why = str(error)
        await shim.begin(begin_call(port, secret, direct, runtime), listener, direct.sealing)
    hello = await shim.hello()
    if not shim.is_direct:
        journal.write("info", f"{hello.node}: streams go over srun: {why or shim.asked.error}")
        # else we were late, or somebody kept it from connecting: the next one may get through
        nobody_else = listener is None or not listener.strangers
        if shim.asked.waited > direct.patience / 2 and nobody_else:
            _unreached.add(place)
    return hello


class Rank:
    """A task, by its number SLURM_PROCID, and its shim, with what that said first."""

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
    """The ranks that have connected; `complete` is set when all are there."""

    def __init__(self, to_srun: int, count: int, journal: Journal) -> None:
        """`to_srun` is the pipe to srun's standard input; `end` closes it."""
        self.complete = trio.Event()
        self._to_srun = to_srun
        self._count = count
        self._journal = journal
        self._ranks: dict[int, Rank] = {}

    @property
    def ranks(self) -> list[Rank]:
        return [rank for _, rank in sorted(self._ranks.items())]

    def end(self) -> None:
        """Let the present shims end; later ones are still taken."""
        if self._to_srun >= 0:
            os.close(self._to_srun)
            self._to_srun = -1

    async def call(self, direct: Direct, nursery: trio.Nursery) -> None:
        """Call all ranks, and take their connections until they are there.

        Raises NotReached if no port is free, and OSError if sockets cannot be made.
        """
        secret = os.urandom(RANDOM)
        most = 2 * self._count  # one that was lost may connect again
        async with Listener(direct.ports, secret, self._journal, most).listening() as listener:
            how = direct._replace(alone=0, patience=_TASKS_PATIENCE)
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
    """Call all shims of a step; they end when the block is left, and the pipes are closed.

    Raises NotReached if no port is free, and OSError if sockets cannot be made.
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
