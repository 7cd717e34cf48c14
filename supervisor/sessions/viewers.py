"""Clients that watch a container: `logs --follow` and `attach`.

`scrun.protocol.attach` describes the protocol.
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
    """Send a file and all that is added to it, until its end."""
    await send(b"\0")
    async with aclosing(followed.read(from_now=False)) as pieces:
        async for piece in pieces:
            await send(piece)


async def attach(container: Container, connection: trio.SocketStream) -> None:
    """Connect a terminal to a container, until the container ends or the peer goes away.

    Raises:
        StateError: Its output is not captured.
        OSError: The peer is gone.
    """
    captured = captured_output(container)
    await connection.send_all(b"\0" + bytes([captured.terminal]))
    async with unwrapped() as nursery:

        @nursery.start_soon
        async def show() -> None:
            async with aclosing(captured.output.read(from_now=True)) as pieces:
                async for piece in pieces:
                    await connection.send_all(frame(DATA, piece))
            await container.ended.wait()
            await connection.send_all(frame(SIGNAL, bytes([container.exit_status])))
            nursery.cancel_scope.cancel()

        await _handle_frames(container, captured, connection)
        nursery.cancel_scope.cancel()


def captured_output(container: Container) -> CapturedOutput:
    """Return a container's output, if we capture it.

    Raises:
        StateError: It goes elsewhere.
    """
    if container.captured is None:
        raise StateError(
            f"container {container.id}: its output is not kept here: it goes where `scrun run` "
            "was redirected to, or to the engine that created it (podman attach, ...)"
        )
    return container.captured


async def _handle_frames(
    container: Container, captured: CapturedOutput, connection: trio.SocketStream
) -> None:
    """Handle what the peer sends, until its end."""
    data = b""
    async for piece in connection:
        frames, data = take_frames(data + piece)
        for kind, content in frames:
            if kind == DATA:
                await captured.write(content)
            elif kind == SIZE and len(content) == 4:
                rows, columns = (int.from_bytes(content[i : i + 2], "big") for i in (0, 2))
                captured.resize(rows, columns)
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
        pass  # the container is ending, or its log has the reason
