"""Clients that watch a container: `logs --follow` and `attach`.

`scrun.protocol.attach` describes the protocol.
"""

import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress

import trio

from scrun.core.errors import ScrunError, StateError
from scrun.protocol.attach import (
    DATA,
    END,
    FRAMED,
    PIPED,
    POSITION,
    SIGNAL,
    SIZE,
    TAKEN,
    TERMINAL,
    frame,
    take_frames,
)
from scrun.supervisor.containers.capture import CapturedOutput, Followed
from scrun.supervisor.containers.container import Container
from scrun.supervisor.core.nurseries import unwrapped

Send = Callable[[bytes], Awaitable[None]]

_LONGEST = 1 << 20


async def follow(followed: Followed, send: Send, begin: int | None = None) -> None:
    """Send a file and all that is added to it, until its end.

    It begins at a position; None: at the first byte, without frames.
    """
    if begin is None:
        await send(b"\0")
        async with aclosing(followed.read(from_now=False)) as pieces:
            async for piece in pieces:
                await send(piece)
        return
    await send(FRAMED)
    async with aclosing(_frames(followed, begin)) as frames:
        async for one in frames:
            await send(one)
    await send(frame(END, b""))


async def _frames(followed: Followed, begin: int | None) -> AsyncGenerator[bytes, None]:
    """Yield the frames of a file from a position on, see `scrun.protocol.attach`."""
    position = -1
    async with aclosing(followed.read_from(begin)) as pieces:
        async for at, piece in pieces:
            if at != position:
                yield frame(POSITION, at.to_bytes(8, "big"))
            position = at + len(piece)
            if piece:
                yield frame(DATA, piece)


async def attach(
    container: Container,
    connection: trio.SocketStream,
    begin: int | None = None,
    typed: int | None = None,
    *,
    resumes: bool = False,
) -> None:
    """Connect a terminal to a container, until the container ends or the peer goes away.

    Output begins at a position; None: what comes from now on. `typed` is the peer's pipe with what
    is typed there; None if that comes in frames. `resumes`: the peer can go on with a successor of
    ours.

    Raises:
        StateError: Its output is not captured.
        trio.BrokenResourceError: The peer was gone before it got an answer.
    """
    captured = captured_output(container)
    sending = trio.Lock()

    async def send(content: bytes) -> None:
        async with sending:
            await connection.send_all(content)

    bits = (TERMINAL if captured.terminal else 0) | (0 if typed is None else PIPED)
    await send((FRAMED if resumes else b"\0") + bytes([bits]))
    async with unwrapped() as nursery:

        @nursery.start_soon
        async def show() -> None:
            with suppress(trio.BrokenResourceError):  # which is noticed when it is read
                async with aclosing(_frames(captured.output, begin)) as frames:
                    async for one in frames:
                        if resumes or not one.startswith(POSITION):
                            await send(one)
                await container.ended.wait()
                await send(frame(SIGNAL, bytes([container.exit_status])))
                nursery.cancel_scope.cancel()

        async def taken() -> None:
            if resumes:
                await send(frame(TAKEN, b""))

        async with unwrapped() as typing:  # what was typed before the peer went arrives
            if typed is not None:
                typing.start_soon(captured.write_from, typed)
            with suppress(trio.BrokenResourceError):
                await _handle_frames(container, captured, connection, taken)
        nursery.cancel_scope.cancel()


def captured_output(container: Container) -> CapturedOutput:
    """Return a container's output, if we capture it; raises StateError if it goes elsewhere."""
    if container.captured is None:
        raise StateError(
            f"container {container.id}: its output is not kept here: it goes where `scrun run` "
            "was redirected to, or to the engine that created it (podman attach, ...)"
        )
    return container.captured


async def _handle_frames(
    container: Container,
    captured: CapturedOutput,
    connection: trio.SocketStream,
    taken: Callable[[], Awaitable[None]],
) -> None:
    """Handle what the peer sends, until its end; call `taken` after each frame."""
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
            await taken()
        if len(data) > _LONGEST:
            return


async def _signal(container: Container, number: int) -> None:
    if number not in set(signal.Signals):
        return
    try:
        await container.kill(number)
    except (ScrunError, OSError):
        pass  # the container is ending, or its log has the reason
