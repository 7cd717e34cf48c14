"""The supervisor's end of an anchor (see `scrun.anchor.shell`)."""

import contextlib
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


class Anchor:
    """The process that an engine watches.

    It is alive as long as its socket is: nobody else holds that end. So its death is told by
    end of file, and takes no pidfd.
    """

    def __init__(self, fd: int) -> None:
        """Take the socket over.

        Args:
            fd: Our end of the pair; closed by `close`.
        """
        self._fd = fd
        self._stream = trio.lowlevel.FdStream(fd)

    @property
    def alive(self) -> bool:
        """Whether it is there, so that its pid is nobody else's."""
        with socket.socket(fileno=os.dup(self._fd)) as line:
            try:
                return line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
            except BlockingIOError:
                return True
            except OSError:
                return False

    async def signals(self) -> AsyncIterator[signal.Signals]:
        """Yield the signals that it got, until it is dead."""
        rest = b""
        while True:
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
        """Make it exit with a status; no matter if it is dead already.

        A line into a socket that has carried nothing before does not block.
        """
        with contextlib.suppress(OSError):
            os.write(self._fd, b"%d\n" % status)

    async def close(self) -> None:
        """Close our end. An anchor that has not been ended takes it for our death."""
        self._fd = -1
        await self._stream.aclose()


def read_signals(said: bytes) -> tuple[list[signal.Signals], bytes]:
    """Read what an anchor says: a line with its name for each signal.

    Whoever calls `create` chooses the anchor, so it may say anything; what is no signal is none.

    Returns:
        The signals, and the line that is not complete yet.
    """
    *names, rest = said.split(b"\n")
    known = signal.Signals.__members__
    texts = ("SIG" + name.decode(errors="replace") for name in names)
    return [known[text] for text in texts if text in known], rest[-_LINE:]


class GetsSignals(Protocol):
    """What a container does for its anchor."""

    @property
    def phase(self) -> Phase:
        """Where it is in its life."""
        ...

    @property
    def about_to_run(self) -> bool:
        """Whether it runs in a moment."""
        ...

    @property
    def ending(self) -> bool:
        """Whether somebody or something ends it."""
        ...

    @property
    def journal(self) -> Journal:
        """Where messages about it go."""
        ...

    def resized(self) -> None:
        """Pass a new size of the terminal on."""
        ...

    def skip_stage_out(self) -> None:
        """Do not wait for a script that stages out."""
        ...

    def begin(self, call: Callable[[], Awaitable[None]]) -> None:
        """Do something that ends with the container."""
        ...

    async def kill(self, number: int) -> None:
        """Send a signal to it."""
        ...

    def end(self, ending: Ending) -> None:
        """End it."""
        ...


async def forward_signals(anchor: Anchor, container: GetsSignals) -> None:
    """Do what signals to the anchor mean; when it dies, so does the container.

    They are for the container. But who asks for an end shall have one: what is not over
    some seconds later, or when asked again, is cancelled. Then there may be a script that
    stages out; who asks once more does not want to wait for that either.
    """
    asked = False
    async for number in anchor.signals():
        container.journal.write("verbose", f"the anchor got {number.name}")
        if number == signal.SIGWINCH:
            container.resized()
        elif number in FATAL and container.ending:
            if asked:
                container.skip_stage_out()
            asked = True
        elif number in FATAL and (asked or not _hears(container)):
            asked = True
            container.end(killed(number, f"the anchor got {number.name}"))
        elif _hears(container):
            asked = asked or number in FATAL
            container.begin(partial(_pass_on, container, number))
    if container.phase is not Phase.STOPPED:
        container.end(killed(signal.SIGKILL, "the anchor was killed"))


def _hears(container: GetsSignals) -> bool:
    return container.phase is Phase.RUNNING or container.about_to_run


async def _pass_on(container: GetsSignals, number: signal.Signals) -> None:
    try:
        with trio.move_on_after(_GRACE):
            await container.kill(number)
    except (ScrunError, OSError) as error:
        container.journal.write("error", f"{number.name} was not passed on: {described(error)}")
    if number in FATAL:
        await trio.sleep(_GRACE)
        container.end(killed(number, f"the anchor got {number.name}"))
