"""What the supervisor says about a container while its `create` waits for the answer.

Wire: any number of messages before the reply, if the call asked for them (`--debug`, `-v`,
SCRUN_STDERR_DEBUG, …): one byte that says where to, which is no exit status, text, NUL. The text
for standard error is as it is shown; that for `--log` has its level (runc's name) and a blank
before it.
"""

import os
import select

from scrun.cli.parse import Parsed

TO_LOG = b"\xfe"
TO_STDERR = b"\xff"

_ROOM = 4096  # PIPE_BUF: what a pipe takes at once when poll(2) finds it writable


def show(message: bytes, parsed: Parsed) -> None:
    """Write one message, without its NUL. Nothing that goes wrong here is an error."""
    if message[:1] == TO_STDERR:
        write_if_possible(2, message[1:])
    elif log := parsed.text("log"):
        from scrun.cli.report import append

        level, _, text = message[1:].decode(errors="replace").partition(" ")
        append(log, level, text, parsed.text("log-format") or "text")


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
