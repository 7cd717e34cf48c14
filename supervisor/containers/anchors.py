"""The supervisor's end of an anchor (see `scrun.anchor.shell`).

A fatal signal to an anchor ends what it stands for, at the latest after some seconds. But in a
step that may be Slurm's signal: at the program's own request, long before the end, or twice. There
a program that handles the signal goes on, as it would without scrun, and Slurm ends it.
"""

import contextlib
import math
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Protocol

import trio

from scrun.core.errors import ScrunError, described
from scrun.model.states import FATAL, Ending, Phase, killed
from scrun.supervisor.log.journal import Journal

_GRACE = 5.0
_LINE = 64
_TWICE = 1.0  # 24.11 sends SIGTERM, SIGCONT and SIGTERM again at a time limit


class Anchor:
    """The process that an engine watches.

    Only the anchor holds its end of the socket, so end of file means that it died. That takes no
    pidfd.
    """

    def __init__(self, fd: int) -> None:
        """`fd`: our end of the pair, closed by `close`; -1: the engine has the first process."""
        self._fd = fd
        self._stream = None if fd < 0 else trio.lowlevel.FdStream(fd)

    def fileno(self) -> int:
        return self._fd

    @property
    def alive(self) -> bool:
        """Whether it lives, so that its pid is still its own."""
        with socket.socket(fileno=os.dup(self._fd)) as line:
            try:
                return line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
            except BlockingIOError:
                return True
            except OSError:
                return False

    async def signals(self) -> AsyncIterator[signal.Signals]:
        """Yield the signals that it receives, until it dies."""
        rest = b""
        while True:
            if self._stream is None:
                await trio.sleep_forever()
            try:
                data = await self._stream.receive_some()
            except trio.BrokenResourceError:  # it died with a status of ours unread
                return
            if not data:
                return
            numbers, rest = read_signals(rest + data)
            for number in numbers:
                yield number

    def end(self, status: int) -> None:
        """Make it exit with a status; does nothing if it is dead.

        One line written to an unused socket does not block.
        """
        with contextlib.suppress(OSError):
            os.write(self._fd, b"%d\n" % status)

    async def close(self) -> None:
        """Close our end. An anchor that was not ended takes that for our death."""
        self._fd = -1
        if self._stream is not None:
            await self._stream.aclose()


def read_signals(data: bytes) -> tuple[list[signal.Signals], bytes]:
    """Parse an anchor's output: one line with a name per signal.

    The caller of `create` chooses the anchor, so the output may be anything; unknown names are
    ignored.

    Returns:
        The signals, and the incomplete last line.
    """
    *names, rest = data.split(b"\n")
    known = signal.Signals.__members__
    texts = ("SIG" + name.decode(errors="replace") for name in names)
    return [known[text] for text in texts if text in known], rest[-_LINE:]


class GetsSignals(Protocol):
    """What an anchor needs from its container."""

    @property
    def phase(self) -> Phase: ...

    @property
    def about_to_run(self) -> bool:
        """Whether its program is being started right now."""
        ...

    @property
    def ending(self) -> bool: ...

    @property
    def in_step(self) -> bool:
        """Whether its anchor is a command in a step of Slurm's, which signals that."""
        ...

    @property
    def journal(self) -> Journal: ...

    def resized(self) -> None:
        """Pass on a new size of the terminal."""
        ...

    def skip_stage_out(self) -> None:
        """Stop waiting for a script that stages out."""
        ...

    def begin(self, call: Callable[[], Awaitable[None]]) -> None:
        """Start a task that ends with the container."""
        ...

    async def kill(self, number: int) -> None: ...

    async def handles(self, number: int) -> bool:
        """Tell whether its program handles a signal; False if that is not known."""
        ...

    def end(self, ending: Ending) -> None: ...


async def forward_signals(anchor: Anchor, container: GetsSignals) -> None:
    """Forward an anchor's signals to its container; when the anchor dies, end the container.

    A fatal signal ends the container: it is cancelled if it does not exit within some seconds, or
    at the second such signal; in a step only if its program does not handle the signal. A further
    one stops the wait for the script that stages out.
    """
    end_requested = False
    is_repeated = repeats()
    async for number in anchor.signals():
        container.journal.write("verbose", f"the anchor received {number.name}")
        if number == signal.SIGWINCH:
            container.resized()
        elif container.in_step and is_repeated(number):
            continue
        elif number in FATAL and container.ending:
            if end_requested:
                container.skip_stage_out()
            end_requested = True
        elif number in FATAL and not _takes_signals(container):
            end_requested = True
            container.end(killed(number, f"the anchor received {number.name}"))
        elif _takes_signals(container):
            container.begin(partial(_pass_on, container, number, again=end_requested))
            end_requested = end_requested or number in FATAL
    if container.phase is not Phase.STOPPED:
        container.end(killed(signal.SIGKILL, "the anchor was killed"))


def _takes_signals(container: GetsSignals) -> bool:
    return container.phase is Phase.RUNNING or container.about_to_run


def repeats() -> Callable[[int], bool]:
    """Return what tells whether a signal is the one before once more, for a step."""
    told = -math.inf

    def is_repeated(number: int) -> bool:
        nonlocal told
        if number != signal.SIGTERM:
            return False
        before, told = told, trio.current_time()
        return told < before + _TWICE

    return is_repeated


async def _pass_on(container: GetsSignals, number: signal.Signals, *, again: bool) -> None:
    """Pass a signal on; a fatal one also ends the container, unless it handles that in a step.

    Args:
        again: Whether it is not the first fatal one.
    """
    ends = number in FATAL and not (container.in_step and await container.handles(number))
    if not (ends and again):
        over = trio.current_time() + _GRACE
        try:
            with trio.move_on_at(over):
                await container.kill(number)
        except (ScrunError, OSError) as error:
            text = f"{number.name} was not passed on: {described(error)}"
            container.journal.write("error", text)
        if ends:
            await trio.sleep_until(over)
    if ends:
        container.end(killed(number, f"the anchor received {number.name}"))
