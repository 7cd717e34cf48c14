"""The keepalive of a job here: a process that removes its container when we let go, or die.

It is a shell that reads removal commands from a socket of ours: the last one counts. So it has the
job as long as somebody has the other end: we, or what we have left for a successor.
"""

import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from scrun.supervisor.children.foreign import foreign_process
from scrun.supervisor.children.processes import Child, ChildEnv, child
from scrun.supervisor.children.pumps import messages, received
from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.core.deposits import JOB, Deposit
from scrun.supervisor.core.inheritance import Inheritance

_SCRIPT = """\
text=$1
while IFS= read -r line; do text=$line; done
exec /bin/sh -c "$text" >/dev/null 2>&1 </dev/null
"""
_GRACE = 5.0
_RELEASE = 20.0


class Keepalive:
    """The keepalive of one job.

    Attributes:
        process: Its process.
    """

    def __init__(self, process: Child, line: trio.socket.SocketType, deposit: Deposit) -> None:
        """Use `kept_alive` or `taken_over`."""
        self.process = process
        self._line = line
        self._deposit = deposit

    async def tell(self, command: str) -> None:
        """Give it another removal command, which is one line."""
        if "\n" not in command:
            # if it was killed, the engine removes the container
            with contextlib.suppress(OSError):
                await self._line.send(f"{command}\n".encode(errors="surrogateescape"))

    async def end(self) -> None:
        """Let it remove the container, and wait for that."""
        self._deposit.drop(JOB)  # else it sees no end of file
        self._line.close()
        with trio.move_on_after(_RELEASE, shield=True):
            await self.process.wait()


@asynccontextmanager
async def kept_alive(
    command: str, child_env: ChildEnv, request: JobRequest
) -> AsyncIterator[Keepalive]:
    """Begin a keepalive, and keep it for a successor; it has ended when the block is left."""
    deposit = request.deposit
    ours, theirs = socket.socketpair()
    with theirs, trio.socket.from_stdlib_socket(ours) as line:
        async with (
            messages(
                lambda text: request.journal.write("info", text),
                lambda said: deposit.hold({f"{JOB}keepalive_said": said}),
            ) as stderr,
            child(
                ["/bin/sh", "-c", _SCRIPT, "sh", command],
                child_env,
                stdin=theirs.fileno(),
                stderr=stderr,
                grace=_GRACE,
                dies_with_us=False,
            ) as process,
        ):
            theirs.close()
            kept = {f"{JOB}line": ours.fileno(), f"{JOB}keepalive": process.pidfd}
            deposit.hold(kept, keepalive=process.pid)
            yield Keepalive(process, line, deposit)


@asynccontextmanager
async def taken_over(found: Inheritance, request: JobRequest) -> AsyncIterator[Keepalive]:
    """Take over the keepalive of a supervisor that has died."""
    ours = socket.socket(fileno=found.take(f"{JOB}line"))
    pid, pidfd = found.facts["keepalive"], found.take(f"{JOB}keepalive")
    with trio.socket.from_stdlib_socket(ours) as line:
        async with (
            received(
                found.take(f"{JOB}keepalive_said"),
                lambda text: request.journal.write("info", text),
            ),
            foreign_process(pid, pidfd, "keepalive", grace=_GRACE) as process,
        ):
            yield Keepalive(process, line, request.deposit)
