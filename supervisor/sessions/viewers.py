"""Those who watch a container: `logs --follow` and `attach`.

See `scrun.commands.attach` for what is on the wire.
"""

import signal
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import trio

from scrun.core.errors import ScrunError, StateError
from scrun.protocol.attach import DATA, SIGNAL, SIZE, frame, take_frames
from scrun.supervisor.containers.capture import CapturedOutput, Followed
from scrun.supervisor.containers.container import Container
from scrun.supervisor.core.nurseries import unwrapped

Send = Callable[[bytes], Awaitable[None]]

_LONGEST = 1 << 20


async def follow(followed: Followed, send: Send) -> None:
    """Send a file, and what is added to it, until it ends or nobody listens."""
    await send(b"\0")
    async with aclosing(followed.read(from_now=False)) as pieces:
        async for piece in pieces:
            await send(piece)


async def attach(container: Container, connection: trio.SocketStream) -> None:
    """Connect a terminal to a container, until the container ends or the other side goes.

    Raises:
        StateError: Its output is not ours.
        OSError: The other side is gone.
    """
    kept = kept_output(container)
    await connection.send_all(b"\0" + bytes([kept.terminal]))
    async with unwrapped() as nursery:

        @nursery.start_soon
        async def show() -> None:
            async with aclosing(kept.output.read(from_now=True)) as pieces:
                async for piece in pieces:
                    await connection.send_all(frame(DATA, piece))
            await container.ended.wait()
            await connection.send_all(frame(SIGNAL, bytes([container.exit_status])))
            nursery.cancel_scope.cancel()

        await _obey(container, kept, connection)
        nursery.cancel_scope.cancel()


def kept_output(container: Container) -> CapturedOutput:
    """Return a container's output, if it goes through us.

    Raises:
        StateError: It does not.
    """
    if container.kept is None:
        raise StateError(
            f"container {container.id}: its output is not kept here: it goes where `scrun run` "
            "was redirected to, or to the engine that created it (podman attach, ...)"
        )
    return container.kept


async def _obey(container: Container, kept: CapturedOutput, connection: trio.SocketStream) -> None:
    """Do what the other side says, until it has said all."""
    data = b""
    async for piece in connection:
        frames, data = take_frames(data + piece)
        for kind, content in frames:
            if kind == DATA:
                await kept.write(content)
            elif kind == SIZE and len(content) == 4:
                rows, columns = (int.from_bytes(content[i : i + 2], "big") for i in (0, 2))
                kept.resize(rows, columns)
                container.resized()
            elif kind == SIGNAL and len(content) == 1:
                await _signal(container, content[0])
        if len(data) > _LONGEST:
            return


async def _signal(container: Container, number: int) -> None:
    if number not in set(signal.Signals):
        return
    try:
        await container.kill(number)
    except (ScrunError, OSError):
        pass  # it ends, or will be told by its own log
