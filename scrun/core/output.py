"""Standard output of a command: it may be a terminal, closed, or have no reader."""

import os


def say(text: bytes) -> None:
    """Print text on standard output; at a terminal, what would move its cursor is written out.

    Ids, paths and annotations come from anywhere, and an answer that root gets may be another
    user's.

    Raises:
        OSError: As `write`.
    """
    if os.isatty(1):
        from scrun.core.text import printable_lines

        text = printable_lines(text)
    write(text)


def write(content: bytes) -> None:
    """Print on standard output, which may be closed, or its reader gone.

    Not by `sys.stdout`: it is None when the descriptor was closed, and nobody flushes it.

    Raises:
        OSError: It cannot be written, for another reason.
    """
    while content:
        try:
            content = content[os.write(1, content) :]
        except BlockingIOError:  # somebody else's pipe or terminal, made so by them
            import select

            select.select([], [1], [])
        except OSError as error:
            if error.errno in (9, 32):  # closed, as `scrun state X | true`: who asked has enough
                return
            raise OSError(error.errno, error.strerror, "standard output") from None
