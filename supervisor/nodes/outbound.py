"""What containers of a shim connect to in networks of their engine's."""

import base64
from functools import partial
from typing import Any

import trio

from scrun.core.errors import ScrunError
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.networks import EngineSide
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.nodes.connection import Shim
from scrun.supervisor.nodes.messages import ShimError, ShimLost

_MOST = 256
"""Connections and questions of one container at a time; others wait in the shim."""


async def serve(shim: Shim, container: str, engine: EngineSide, child_env: ChildEnv) -> None:
    """Serve them until this is cancelled, or the shim has gone.

    Args:
        container: The shim's id of it.
        engine: The engine's networks.
    """
    room = trio.Semaphore(_MOST)
    async with unwrapped() as nursery:
        while True:
            await room.acquire()
            try:
                arrived = await shim.call("accept", container=container)
            except (ShimError, ShimLost):  # the container has ended; or it cannot do that
                return
            nursery.start_soon(_serve, shim, container, arrived, engine, child_env, room)


async def _serve(
    shim: Shim,
    container: str,
    arrived: dict[str, Any],
    engine: EngineSide,
    child_env: ChildEnv,
    room: trio.Semaphore,
) -> None:
    number = arrived["number"]
    refuse = partial(shim.tell, "refuse", container=container, number=number)
    try:
        if not arrived["addresses"]:
            answer = await engine.ask(base64.b64decode(arrived["text"]))
            text = base64.b64encode(answer).decode()
            shim.tell("answer", container=container, number=number, text=text)
            return
        [address] = arrived["addresses"]
        with await engine.connect(*address) as server:
            await shim.attach(container, number, server, child_env)
    except (ScrunError, OSError, ValueError):
        refuse()
    finally:
        room.release()
