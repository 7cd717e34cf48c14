"""The connection to a supervisor that has lent us a job (`supervisor.containers.lending`)."""

import socket
from collections.abc import Callable
from contextlib import suppress

import trio

from scrun.core.typed import decode_as
from scrun.model.states import Ending
from scrun.supervisor.core.deposits import JOB

LOAN = f"{JOB}loan"
"""The name of the connection among what holds the job."""

CLEAN = b"+"
"""Says that the next container may have the job."""

_ANSWER = 5.0
_LONGEST = 1 << 16


class Lender:
    """The connection to the supervisor that has lent a job.

    Attributes:
        sock: The connection; a deposit may keep it.
        gone: Set when the lender has died: the job is ours alone.
    """

    def __init__(self, sock: socket.socket) -> None:
        """Take over the connection."""
        sock.setblocking(False)
        self.sock = sock
        self.gone = trio.Event()

    async def watch(self, on_lost: Callable[[Ending], None]) -> None:
        """Report the loss of the job; or note the end of the lender."""
        said = b""
        while not said.endswith(b"\n"):
            await trio.lowlevel.wait_readable(self.sock)
            try:
                part = self.sock.recv(_LONGEST)
            except BlockingIOError:
                continue
            except OSError:
                part = b""
            if not part:
                self.gone.set()
                return
            said += part
        on_lost(decode_as(said, Ending))

    async def give_back(self) -> None:
        """Let the next container have the job; returns when the lender has it again."""
        with suppress(OSError), trio.move_on_after(_ANSWER, shield=True):
            self.sock.send(CLEAN)  # a byte: this does not block
            await trio.lowlevel.wait_readable(self.sock)

    def close(self) -> None:
        """Close it; without `give_back` the lender releases the job."""
        trio.lowlevel.notify_closing(self.sock)
        self.sock.close()
