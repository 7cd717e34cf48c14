"""Jobs that wait are lent to other supervisors of the user's.

Each `buildah run` has a user namespace of its own, and so has its supervisor. The first one keeps
the job, and lends it to those that follow.

Wire, after the request `borrow REQUEST`: a byte 0, and a line of JSON: the job's id and variables,
and what holds it, whose descriptors are sent along; or nothing if no job suits. If the job is
lost, a further line says how. The borrower sends `+` when the next container may have the job; the
lender answers with a line when that is so. A connection that ends otherwise gives the job back to
Slurm, at either end: so the borrower goes on when the lender dies, and holds the job alone.
"""

import socket
from array import array
from contextlib import suppress
from typing import Any

import msgspec
import trio

from scrun.core.paths import keepers
from scrun.core.rights import receive_fds
from scrun.core.typed import decode_as
from scrun.model.states import Ending
from scrun.protocol import wire
from scrun.supervisor.contracts.reuse import CLEAN, LOAN, Lend
from scrun.supervisor.core.inheritance import Inheritance, close_all
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.threads import in_thread

_ANSWER = 5.0
_LONGEST = 1 << 16


class _Job(msgspec.Struct, frozen=True):
    job_id: str
    environment: dict[str, str]
    facts: dict[str, Any] = {}
    names: list[str] = []


async def lend(lender: Lend, loan_request: bytes, connection: trio.SocketStream) -> None:
    """Lend a job, until the borrower gives it back.

    Raises:
        trio.BrokenResourceError: The borrower is gone.
    """
    ending: list[Ending] = []
    lost = trio.Event()

    def on_lost(how: Ending) -> None:
        ending.append(how)
        lost.set()

    async with lender(loan_request, on_lost) as loan:
        if loan is None:
            await connection.send_all(b"\0\n")
            return
        names, fds, facts = [*loan.fds], [*loan.fds.values()], dict(loan.facts)
        job = _Job(facts.pop("job"), facts.pop("environment"), facts, names)
        message = b"\0" + msgspec.json.encode(job) + b"\n"
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
        sent = await connection.socket.sendmsg([message], rights)
        await connection.send_all(message[sent:])
        async with unwrapped() as nursery:

            @nursery.start_soon
            async def tell() -> None:
                await lost.wait()
                await connection.send_all(msgspec.json.encode(ending[0]) + b"\n")

            loan.clean = await connection.receive_some(1) == CLEAN
            nursery.cancel_scope.cancel()
    await connection.send_all(b"\n")


async def borrow(root: str, name: str, loan_request: bytes) -> Inheritance | None:
    """Borrow a job (see `supervisor.contracts.reuse.Borrow`)."""
    for other in await in_thread(keepers, root):
        if other == name:
            continue
        with suppress(OSError), trio.move_on_after(_ANSWER):
            line = await in_thread(wire.connect_supervisor, root, other, int(_ANSWER))
            sock = socket.socket(fileno=line.detach())
            borrowed = None
            try:
                sock.setblocking(False)
                borrowed = await _ask(sock, loan_request)
            finally:
                if borrowed is None:
                    sock.close()
            if borrowed is not None:
                borrowed.fds[LOAN] = sock.detach()
                return borrowed
    return None


async def _ask(sock: socket.socket, loan_request: bytes) -> Inheritance | None:
    """Ask a supervisor for a job; an older one does not know the request."""
    sock.send(wire.frame([b"borrow", loan_request]))  # the first words: they fit
    answer, fds = b"", list[int]()
    try:
        while not answer.endswith(b"\n"):
            await trio.lowlevel.wait_readable(sock)
            part, more, _ = receive_fds(sock, _LONGEST)
            fds += more
            if not part or len(answer) > _LONGEST:
                return None
            answer += part
        if answer[:1] != b"\0" or answer == b"\0\n":
            return None
        job = decode_as(answer[1:], _Job)
        if not job.names or len(fds) != len(job.names):  # an older one; or we are out of them
            return None
        by_name, fds = dict(zip(job.names, fds, strict=True)), []
        facts = {**job.facts, "job": job.job_id, "environment": job.environment}
        return Inheritance("", facts, by_name)
    finally:
        close_all(fds)
