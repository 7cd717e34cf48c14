"""What containers of a shim connect to in networks of their engine's, and at its sockets."""

import base64
from typing import Any

import trio

from scrun.core.errors import ScrunError
from scrun.supervisor.contracts.networks import EngineSide
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.nodes.beginning import Rank
from scrun.supervisor.nodes.connected import attach
from scrun.supervisor.nodes.messages import ShimError, ShimLost

_MOST = 256
"""Connections and questions of one container at a time; others wait in the shim."""


async def serve(rank: Rank, engine: EngineSide, **which: object) -> None:
    """Serve them until this is cancelled, or the shim has gone.

    Args:
        engine: The engine's networks, or sockets.
        which: The container, and which of these, as fields of the calls.
    """
    room = trio.Semaphore(_MOST)
    async with unwrapped() as nursery:
        while True:
            await room.acquire()
            try:
                arrived = await rank.shim.call("accept", **which)
            except (ShimError, ShimLost):  # the container has ended; or it cannot do that
                return
            nursery.start_soon(_serve, rank, which, arrived, engine, room)


async def _serve(
    rank: Rank,
    which: dict[str, object],
    arrived: dict[str, Any],
    engine: EngineSide,
    room: trio.Semaphore,
) -> None:
    which = {**which, "number": arrived["number"]}
    try:
        path, addresses = arrived["path"], arrived["addresses"]
        if not (path or addresses):
            answer = await engine.ask(base64.b64decode(arrived["text"]))
            text = base64.b64encode(answer).decode()
            rank.shim.tell("answer", **which, text=text)
            return
        [address] = addresses or [(path, 0)]
        with await engine.connect(*address) as server:
            await attach(rank, server, **which)
    except (ScrunError, OSError, ValueError):
        rank.shim.tell("refuse", **which)
    finally:
        room.release()
