"""Show the messages that the supervisor sends while `create` waits."""

import os
import select

from scrun.cli.failure import append
from scrun.cli.parse import Parsed
from scrun.core.text import printable
from scrun.protocol.wire import LIVE, TO_STDERR

_ROOM = 4096  # PIPE_BUF: a pipe that poll(2) finds writable takes as much without blocking


_live = False


def is_live() -> bool:
    """Tell whether standard error is a terminal whose last line can be cleared."""
    return os.isatty(2) and os.environ.get("TERM") != "dumb"


def show(message: bytes, parsed: Parsed) -> None:
    """Show one message, without its NUL; errors are ignored."""
    global _live
    if message[:1] == LIVE:
        if not is_live():
            return
        clear()
        _live = bool(message[1:])
        write_if_possible(2, _fitting(message[1:]))
        return
    if message[:1] == TO_STDERR:
        clear()
        write_if_possible(2, message[1:])
    elif log := parsed.text("log"):
        level, _, text = message[1:].decode(errors="replace").partition(" ")
        append(log, level, text, parsed.text("log-format") or "text")


def show_bar(text: str, share: "float | None" = None) -> None:
    """Say in the live line how far something is (`scrun.core.progress.Say`); "" clears it."""
    from scrun.core.progress import with_bar  # `create` has none

    if text:
        line = with_bar(text, share).encode(errors="backslashreplace")
        show(LIVE + line, Parsed())
    else:
        clear()


def clear() -> None:
    global _live
    if _live:
        write_if_possible(2, b"\r\x1b[K")
        _live = False


def _fitting(line: bytes) -> bytes:
    """Cut a line to the terminal's width: a wrapped one could not be cleared."""
    try:
        width = os.get_terminal_size(2).columns or 80
    except OSError:
        width = 80
    text = printable(line.decode(errors="replace"))
    return (text if _cells(text) < width else _begin(text, width - 2) + "…").encode()


def _begin(text: str, width: int) -> str:
    left = width
    for number, character in enumerate(text):
        left -= _cells(character)
        if left < 0:
            return text[:number]
    return text


def _cells(text: str) -> int:
    """Return how wide it is at most: Chinese, Japanese and Korean take two columns each."""
    if text.isascii():
        return len(text)
    import unicodedata  # 2 ms

    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)


def write_if_possible(fd: int, line: bytes) -> None:
    """Write a line, unless that blocks: conmon reads no standard error before `create` ends."""
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    if poller.poll(0):
        try:
            os.write(fd, line[:_ROOM])
        except OSError:
            pass  # its reader is gone
