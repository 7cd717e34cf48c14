"""The `create` that waits for its container, told meanwhile what happens.

Its own standard error and `--log` are its own to write: they may block, and they are somebody
else's. So the messages go over its connection, before the answer: see
`scrun.commands.messages` for their form.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from scrun.cli.report import printable
from scrun.commands.messages import LIVE, TO_LOG, TO_STDERR
from scrun.settings.load import LEVELS, Level
from supervisor.journal import Journal, Shown, as_runc
from supervisor.nurseries import unwrapped

_WAITING = 256
_LONGEST_LINE = 4000
_LONGEST = 16384
_NAMED = ("fatal", "error", "debug", "debug2", "debug3", "debug4", "debug5")


@asynccontextmanager
async def told(journal: Journal, send: Callable[[bytes], Awaitable[None]]) -> AsyncIterator[None]:
    """Send the caller what it asked for, as long as the block lasts.

    When it is left, what was said in it has been sent. One that does not read misses what does
    not fit in the queue, and one that is gone misses everything.

    Args:
        journal: Where the messages come from.
        send: Sends bytes to the caller.
    """
    shown = journal.shown
    if shown.stderr == shown.log == "quiet" and not shown.live:
        yield
        return
    sender, receiver = trio.open_memory_channel[bytes](_WAITING)

    async def pump() -> None:
        async with receiver:
            async for piece in receiver:
                await send(piece)

    async def pump_until_gone() -> None:
        try:
            await pump()
        except OSError:
            pass  # whoever answers it will notice, too

    def tell(level: Level, text: str) -> None:
        if piece := frames(level, text, shown):
            try:
                sender.send_nowait(piece)
            except (trio.WouldBlock, trio.BrokenResourceError):
                pass  # it is in the log

    def tell_live(text: str) -> None:
        try:
            sender.send_nowait(_frame(LIVE, printable(text)[:_LONGEST_LINE]))
        except (trio.WouldBlock, trio.BrokenResourceError):
            pass  # it would have been replaced anyway

    journal.show_to(tell)
    if shown.live:
        journal.show_live(tell_live)
    async with unwrapped() as nursery:
        nursery.start_soon(pump_until_gone)
        try:
            yield
        finally:
            journal.show_to(None)
            journal.show_live(None)
            sender.close()


def frames(level: Level, text: str, shown: Shown) -> bytes:
    """Write a message for the wire, once for each place that it is for."""
    number = LEVELS.index(level)
    result = b""
    if number <= LEVELS.index(shown.log):
        result += _frame(TO_LOG, f"{as_runc(level)} {text[:_LONGEST]}")
    if number <= LEVELS.index(shown.stderr):
        for line in stderr_lines(level, text[:_LONGEST]):
            result += _frame(TO_STDERR, line + "\n")
    return result


def stderr_lines(level: Level, text: str) -> list[str]:
    """Write a message for people, as Slurm's commands do: `scrun: debug: …`."""
    kind = f"{level}: " if level in _NAMED else ""
    return [
        f"scrun: {kind}{printable(line)[:_LONGEST_LINE]}" for line in text.splitlines() or [""]
    ]


def _frame(mark: bytes, text: str) -> bytes:
    return mark + text.replace("\0", "\\0").encode(errors="backslashreplace") + b"\0"
