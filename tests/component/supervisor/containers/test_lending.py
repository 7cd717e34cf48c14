"""Supervisors lend each other jobs that wait, over real sockets."""

import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from scrun.model.states import Ending, taken
from scrun.supervisor.containers import lending
from scrun.supervisor.containers.lending import borrow, lend
from scrun.supervisor.contracts.reuse import LOAN, Loan
from scrun.supervisor.contracts.reuse import Lender as Connection
from scrun.supervisor.core.inheritance import Inheritance

OURS = "@build-me"


class Lender:
    """A supervisor that has a job, or none."""

    def __init__(self, root: Path, name: str, job: str = "") -> None:
        self.job = job
        self.requests: list[bytes] = []
        self.lent: list[Loan] = []
        self.lose: Callable[[Ending], None] | None = None
        self.scope = trio.CancelScope()
        self.done = trio.Event()
        self.instead = b""
        self.path = root / "file"
        self.path.write_bytes(b"holds the job")
        bound = socket.socket(socket.AF_UNIX)
        bound.bind(str(root / name))
        bound.listen(5)
        self._listener = trio.socket.from_stdlib_socket(bound)

    @asynccontextmanager
    async def lender(
        self, loan_request: bytes, on_lost: Callable[[Ending], None]
    ) -> AsyncIterator[Loan | None]:
        self.requests.append(loan_request)
        if not self.job:
            yield None
            return
        with open(self.path, "rb") as file:  # noqa: ASYNC230 - it is there
            fds = {"job.line": file.fileno()}
            environment = {"SLURM_JOB_ID": self.job}
            loan = Loan({"job": self.job, "environment": environment, "salloc": 5}, fds)
            self.lent.append(loan)
            self.lose = on_lost
            yield loan

    def close(self) -> None:
        self._listener.close()

    async def serve(self) -> None:
        connection, _ = await self._listener.accept()
        self._listener.close()
        with self.scope, connection, suppress(trio.BrokenResourceError):
            length = int.from_bytes(await connection.recv(4), "big")
            request = await connection.recv(length)
            operation, loan_request = request.split(b"\0", 1)
            assert operation == b"borrow"
            if self.instead:
                await connection.send(self.instead)
            else:
                stream = trio.SocketStream(connection)
                await lend(self.lender, loan_request, stream)
        self.done.set()


Make = Callable[..., Lender]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Make supervisors, which accept nothing by themselves."""
    made: list[Lender] = []

    def make(name: str, job: str = "") -> Lender:
        made.append(Lender(tmp_path, name, job))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
async def two(make: Make, nursery: trio.Nursery) -> tuple[Lender, Lender]:
    """Two supervisors: the first has no job."""
    found = make("@build-a"), make("@user-b", "7")
    for one in found:
        nursery.start_soon(one.serve)
    return found


@asynccontextmanager
async def borrowed(root: Path, request: bytes) -> AsyncIterator[tuple[Inheritance, Connection]]:
    found = await borrow(str(root), OURS, request)
    assert found is not None
    lender = Connection(socket.socket(fileno=found.take(LOAN)))
    yield found, lender
    lender.close()
    found.close()


@pytest.mark.parametrize("clean", [True, False])
async def test_it_is_lent_and_given_back(
    tmp_path: Path, two: tuple[Lender, Lender], *, clean: bool
) -> None:
    async with borrowed(tmp_path, b"with\0zero") as (found, lender):
        environment = {"SLURM_JOB_ID": "7"}
        assert found.facts == {"salloc": 5, "job": "7", "environment": environment}
        assert os.pread(found.fds["job.line"], 100, 0) == b"holds the job"
        if clean:
            with trio.CancelScope() as scope:  # as the job of a pod is left
                scope.cancel()
                await lender.give_back()
    with trio.fail_after(5):
        await two[1].done.wait()
    assert [one.requests for one in two] == [[b"with\0zero"], [b"with\0zero"]]
    assert [one.clean for one in two[1].lent] == [clean]


async def test_its_loss_is_told(tmp_path: Path, two: tuple[Lender, Lender]) -> None:
    lost: list[Ending] = []
    async with borrowed(tmp_path, b"loan_request") as (_, lender):
        cancelled = taken("cancelled", "job 7 was cancelled")
        assert two[1].lose is not None
        two[1].lose(cancelled)
        with trio.fail_after(5):
            await lender.watch(lost.append)
    assert lost == [cancelled]


async def test_the_end_of_the_lender_is_not_that_of_the_job(
    tmp_path: Path, two: tuple[Lender, Lender]
) -> None:
    lost: list[Ending] = []
    async with borrowed(tmp_path, b"loan_request") as (found, lender):
        two[1].scope.cancel()
        with trio.fail_after(5):
            await lender.watch(lost.append)
            assert lender.gone.is_set()
            assert os.pread(found.fds["job.line"], 100, 0) == b"holds the job"
            await lender.give_back()  # nobody is there to have it
    assert lost == []


@pytest.mark.parametrize("answer", [b"\1unknown request: from another scrun?", b"\0\n", b"\0"])
async def test_nobody_has_one(
    tmp_path: Path, nursery: trio.Nursery, make: Make, answer: bytes
) -> None:
    """Not those of an older version, those that are dead, nor what is no socket."""
    other = make("@user-a")
    other.instead = answer
    nursery.start_soon(other.serve)
    for name in ("@pod-c", OURS):
        make(name, "8")
    (tmp_path / "@user-z.lock").touch()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "@user-dead"))
    assert await borrow(str(tmp_path), OURS, b"loan_request") is None


async def test_one_that_does_not_answer(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "_ANSWER", 1.0)
    make("@user-a", "7")  # it accepts nothing
    with trio.fail_after(20):
        assert await borrow(str(tmp_path), OURS, b"loan_request") is None
