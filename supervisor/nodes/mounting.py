"""Has a shim mount a root file system, or images."""

from scrun.core.errors import EngineError
from scrun.supervisor.contracts.node import Mounting, NotThere, OthersThere, RootRefused
from scrun.supervisor.nodes.connection import Shim, ShimError


async def mount(shim: Shim, name: str, mounting: Mounting, task: int) -> str:
    """Let the shim of a task mount something, and return by what; see `Mounts`.

    Raises:
        EngineError: It is not mounted.
    """
    own = mounting.of(task)
    try:
        reply = await shim.call("mount", id=name, **own)
    except ShimError as error:
        if error.others:
            raise OthersThere(error.others) from None
        if error.unseen:
            raise NotThere(str(error)) from None
        if error.refused:
            raise RootRefused(str(error)) from None
        raise
    if own["root"] and not reply.get("root"):
        await shim.call("unmount", id=name)
        raise EngineError("its shim is of an older scrun")
    return str(reply["way"])
