"""The caller's terminal while a container's is connected to it.

The container's terminal on the node does what a terminal does: echo, lines, signals. So the
caller's does nothing, and every key reaches the container.
"""

import os
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

_ROWS, _COLUMNS = 24, 80


def size(terminal: int) -> tuple[int, int]:
    """Return a terminal's rows and columns; the usual ones if it has none."""
    try:
        columns, rows = os.get_terminal_size(terminal)
    except OSError:  # hung up
        columns = rows = 0
    return (rows, columns) if rows or columns else (_ROWS, _COLUMNS)


@contextmanager
def raw(terminal: int) -> Iterator[None]:
    """Make a terminal raw while the block runs.

    Nothing waits for its output here (TCSADRAIN): that may be stopped.
    """
    try:
        before = termios.tcgetattr(terminal)
        tty.setraw(terminal, termios.TCSANOW)
    except termios.error:  # hung up
        yield
        return
    try:
        yield
    finally:
        try:
            termios.tcsetattr(terminal, termios.TCSANOW, before)
        except termios.error:
            pass  # hung up meanwhile
