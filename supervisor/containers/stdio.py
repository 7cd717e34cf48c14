"""The container's standard input, output and error, while the supervisor has them open."""

import fcntl
import os
import select
from collections.abc import Sequence
from contextlib import suppress

import trio

from scrun.core.text import printable
from scrun.supervisor.core.descriptors import apart, close, may_hang
from scrun.supervisor.core.threads import in_thread

_PATIENCE = 1.0
_BEYOND = 10


class Stdio:
    """The three descriptors of `create`; all the same one for a terminal.

    The engine's command inherits them. We close ours as soon as it has its own, except standard
    error: if the container is taken away, the last line there says why.

    Attributes:
        preserved: The descriptors of `--preserve-fds`, for the engine.
    """

    def __init__(self, fds: list[int], *, terminal: bool, preserved: Sequence[int] = ()) -> None:
        """`terminal`: whether they are a terminal."""
        self._fds = fds
        self.preserved = tuple(map(_beyond_shells, preserved))
        self._line_end = "\r\n" if terminal else "\n"
        self.error_is_captured = False
        self._said: trio.Event | None = None

    @property
    def terminal(self) -> int | None:
        """A descriptor of the terminal, if the container has one."""
        return self._fds[0] if self._line_end == "\r\n" else None

    async def at_terminal(self) -> bool:
        """Tell whether standard input and output are a terminal, whosever it is."""
        return await is_terminal(self._fds[0]) and await is_terminal(self._fds[1])

    async def error_is_terminal(self) -> bool:
        """Tell whether standard error is a terminal, whosever it is."""
        return await is_terminal(self._fds[2])

    @property
    def fds(self) -> tuple[int, int, int]:
        stdin, stdout, stderr = self._fds
        return stdin, stdout, stderr

    def replace(self, fds: dict[int, int], *, terminal: bool) -> None:
        """Replace some of the descriptors, by number; closes the old ones."""
        self.error_is_captured = 2 in fds
        for number, fd in fds.items():
            close(self._fds[number])
            self._fds[number] = fd
        if terminal:
            self.mark_as_terminal()

    def mark_as_terminal(self) -> None:
        self._line_end = "\r\n"

    def keep_error_only(self) -> None:
        """Close all others: the engine has its own by now."""
        self._close(self._fds[:2])
        self._close_preserved()
        self._fds[:2] = [-1, -1]  # the kernel reuses the numbers

    def say(self, text: str) -> None:
        """Write a line to standard error, if that does not block; to a file, in a thread."""
        error = self._fds[2]
        if error < 0:
            return
        said = f"scrun: {printable(text)}{self._line_end}".encode(errors="replace")
        line = said[: select.PIPE_BUF]
        if may_hang(error):
            with suppress(OSError, RuntimeError):  # no descriptor or thread is left
                own = os.dup(error)  # the thread may need it for longer than we have it
                self._said = apart(_write_and_close, own, line)
            return
        poller = select.poll()
        poller.register(error, select.POLLOUT)
        if poller.poll(0):
            _write(error, line)

    async def said(self) -> None:
        """Wait until the last line is there, but not for long."""
        if self._said is not None:
            with trio.move_on_after(_PATIENCE, shield=True):
                await self._said.wait()

    def close(self) -> None:
        self._close(self._fds)
        self._fds = [-1, -1, -1]
        self._close_preserved()

    def _close_preserved(self) -> None:
        preserved, self.preserved = self.preserved, ()
        self._close(list(preserved))

    def _close(self, fds: list[int]) -> None:
        for fd in fds:
            if fd >= 0:
                close(fd)


def _beyond_shells(fd: int) -> int:
    """Give a descriptor a number that no shell has for itself: those have one digit."""
    if fd >= _BEYOND:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _BEYOND)
    finally:
        os.close(fd)


async def is_terminal(fd: int) -> bool:
    """Tell whether a caller's descriptor is a terminal."""
    return await in_thread(os.isatty, fd, abandon=True) if may_hang(fd) else os.isatty(fd)


def _write(fd: int, line: bytes) -> None:
    try:
        os.write(fd, line)
    except OSError:
        pass  # its reader is gone, or its disk is full


def _write_and_close(fd: int, line: bytes) -> None:
    _write(fd, line)
    os.close(fd)
