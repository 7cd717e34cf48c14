"""Jobs that wait are lent to other supervisors of the user's.

Each `buildah run` has a user namespace of its own, and so has its supervisor. The first one keeps
the job, and lends it to those that follow.

Wire, after the request `borrow REQUEST`: a byte 0, and a line of JSON: the job's id and variables,
or nothing if no job suits. If the job is lost, a further line says how. The borrower
sends `+` when the next container may have the job; the lender answers with a line when that is so.
A connection that ends otherwise gives the job back to Slurm.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec
import trio

from scrun.core.paths import keepers
from scrun.model.states import Ending, taken
from scrun.protocol import wire
from scrun.supervisor.contracts.kept import Borrow, Borrowed
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.threads import in_thread

_ANSWER = 5.0
_LONGEST = 1 << 16
_CLEAN = b"+"


class _Job(msgspec.Struct, frozen=True):
    job_id: str
    environment: dict[str, str]


async def lend(
    lenders: Sequence[Borrow], loan_request: bytes, connection: trio.SocketStream
) -> None:
    """Lend a job, until the borrower gives it back.

    Args:
        lenders: `lend` of each engine.
        loan_request: What the borrower needs.
        connection: To the borrower.

    Raises:
        trio.BrokenResourceError: The borrower is gone.
    """
    for lender in lenders:
        if await _lent(lender, loan_request, connection):
            await connection.send_all(b"\n")
            return
    await connection.send_all(b"\0\n")


async def _lent(lender: Borrow, loan_request: bytes, connection: trio.SocketStream) -> bool:
    """Lend a job of one engine until it is given back; return False if none suits."""
    ending: list[Ending] = []
    lost = trio.Event()

    def on_lost(how: Ending) -> None:
        ending.append(how)
        lost.set()

    async with lender(loan_request, on_lost) as borrowed:
        if borrowed is None:
            return False
        job = _Job(borrowed.job_id, dict(borrowed.environment))
        await connection.send_all(b"\0" + msgspec.json.encode(job) + b"\n")
        async with unwrapped() as nursery:

            @nursery.start_soon
            async def tell() -> None:
                await lost.wait()
                await connection.send_all(msgspec.json.encode(ending[0]) + b"\n")

            borrowed.clean = await connection.receive_some(1) == _CLEAN
            nursery.cancel_scope.cancel()
    return True


@asynccontextmanager
async def borrow(
    root: str, name: str, loan_request: bytes, on_lost: Callable[[Ending], None]
) -> AsyncIterator[Borrowed | None]:
    """Borrow a job (see `supervisor.contracts.kept.Borrow`).

    Args:
        root: The root directory, where the supervisors' sockets are.
        name: Our own socket.
        loan_request: What the engine needs.
        on_lost: Called when the job is taken away.
    """
    found = await _found(root, name, loan_request)
    if found is None:
        yield None
        return
    stream, job = found
    borrowed = Borrowed(job.job_id, job.environment)
    try:
        async with unwrapped() as nursery:
            nursery.start_soon(_watch, stream, job.job_id, on_lost)
            try:
                yield borrowed
            finally:
                nursery.cancel_scope.cancel()
    finally:
        if borrowed.clean:
            await _give_back(stream)
        stream.socket.close()


async def _give_back(stream: trio.SocketStream) -> None:
    """Let the next container have the job."""
    with suppress(trio.BrokenResourceError), trio.move_on_after(_ANSWER, shield=True):
        await stream.send_all(_CLEAN)
        await stream.receive_some(1)


async def _found(
    root: str, name: str, loan_request: bytes
) -> tuple[trio.SocketStream, _Job] | None:
    """Find a supervisor that lends a job; return the connection and the job."""
    for other in await in_thread(keepers, root):
        if other == name:
            continue
        with suppress(OSError, trio.BrokenResourceError), trio.move_on_after(_ANSWER):
            stream = await _connected(root, other)
            job = None
            try:
                job = await _ask(stream, loan_request)
            finally:
                if job is None:
                    stream.socket.close()
            if job is not None:
                return stream, job
    return None


async def _connected(root: str, name: str) -> trio.SocketStream:
    sock = await in_thread(wire.connect_supervisor, root, name, int(_ANSWER))
    return trio.SocketStream(trio.socket.socket(fileno=sock.detach()))


async def _ask(stream: trio.SocketStream, loan_request: bytes) -> _Job | None:
    """Ask a supervisor for a job; an older one does not know the request."""
    await stream.send_all(wire.frame([b"borrow", loan_request]))
    answer = b""
    while not answer.endswith(b"\n"):
        part = await stream.receive_some(_LONGEST)
        if not part or len(answer) > _LONGEST:
            return None
        answer += part
    if answer[:1] != b"\0" or answer == b"\0\n":
        return None
    return msgspec.json.decode(answer[1:], type=_Job)


async def _watch(
    stream: trio.SocketStream, job_id: str, on_lost: Callable[[Ending], None]
) -> None:
    """Report the loss of the job, or of its supervisor."""
    answer = b""
    with suppress(trio.BrokenResourceError):
        while not answer.endswith(b"\n") and (part := await stream.receive_some(_LONGEST)):
            answer += part
    if answer.endswith(b"\n"):
        on_lost(msgspec.json.decode(answer, type=Ending))
    else:
        text = f"job {job_id} is lost: the supervisor that kept it has ended"
        on_lost(taken("scrun-failure", text))
