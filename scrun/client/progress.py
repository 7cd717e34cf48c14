"""What the supervisor says about a container while its `create` waits, shown at the terminal."""

import os
import select

from scrun.cli.parse import Parsed
from scrun.protocol.progress import LIVE, TO_STDERR

_ROOM = 4096  # PIPE_BUF: what a pipe takes at once when poll(2) finds it writable


_live = False


def show(message: bytes, parsed: Parsed) -> None:
    """Write one message, without its NUL. Nothing that goes wrong here is an error."""
    global _live
    if message[:1] == LIVE:
        if not os.isatty(2):
            return
        clear()
        _live = bool(message[1:])
        write_if_possible(2, _fitting(message[1:]))
        return
    if message[:1] == TO_STDERR:
        clear()
        write_if_possible(2, message[1:])
    elif log := parsed.text("log"):
        from scrun.cli.report import append

        level, _, text = message[1:].decode(errors="replace").partition(" ")
        append(log, level, text, parsed.text("log-format") or "text")


def clear() -> None:
    """Take the live line away."""
    global _live
    if _live:
        write_if_possible(2, b"\r\x1b[K")
        _live = False


def _fitting(line: bytes) -> bytes:
    """Cut a line to the terminal's width: what is wrapped could not be taken away."""
    try:
        width = os.get_terminal_size(2).columns or 80
    except OSError:
        width = 80
    text = line.decode(errors="replace")
    return (text if len(text) < width else text[: max(width - 2, 0)] + "…").encode()


def write_if_possible(fd: int, line: bytes) -> None:
    """Write a line, unless that has to wait.

    conmon does not read the container's standard error before `create` has ended: waiting for
    room in that pipe would be waiting for ever. What is left out is in the container's log.
    """
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    if poller.poll(0):
        try:
            os.write(fd, line[:_ROOM])
        except OSError:
            pass  # its reader is gone
