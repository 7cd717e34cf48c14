"""How a shim begins: it is told where we listen, connects there, and gets its code.

Nodes can connect to the submit host in any case: slurmstepd does, for srun's streams. What cannot
goes over srun, which is slower.
"""

import os
import socket
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from scrun.supervisor.core.own_key import own_key
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.nodes.code import sums
from scrun.supervisor.nodes.connection import Shim
from scrun.supervisor.nodes.dialing import Listener, NotReached, Unreached
from scrun.supervisor.nodes.link import SEALING, Sealing
from scrun.supervisor.nodes.messages import Hello
from scrun.supervisor.wire.frames import RANDOM

ALONE = 600.0
"""How long a shim waits for a successor, in seconds, if nobody says otherwise."""

LONGEST_ALONE = 2e6
"""The longest; a shim counts milliseconds, in 31 bits."""

_PATIENCE = 2.0
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

    Call `code.variables` before.

    Args:
        port: Where we listen; 0: nowhere.
        runtime: The runtime that another shim on its node has tried, or "".
        needed: Whether it cannot do without the connection.
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
    }


async def begun(shim: Shim, direct: Direct, journal: Journal, place: str, runtime: str) -> Hello:
    """Call a shim; where it cannot connect, it talks over srun.

    Args:
        place: The name of its node, or "" for an unknown one.

    Returns:
        What it says first.

    Raises:
        ShimLost: It ended, or never began.
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
        # else somebody may have kept it from connecting who is not there the next time
        nobody_else = listener is None or not listener.strangers
        if shim.asked.waited > direct.patience / 2 and nobody_else:
            _unreached.add(place)
    return hello
