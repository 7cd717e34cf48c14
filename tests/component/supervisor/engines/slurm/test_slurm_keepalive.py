"""What the keepalive of a job has said, and is told; a real shell, without a salloc around it."""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from scrun.model.states import exited
from scrun.model.waiting import RATE_LIMITED, Waiting
from scrun.settings.file.load import Log
from scrun.supervisor.children.processes import ChildEnv, child
from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.engines.slurm.allocation import (
    KEEPALIVE,
    AllocationRequest,
    SallocConversation,
)
from scrun.supervisor.engines.slurm.pending import Queue
from scrun.supervisor.engines.slurm.tools import Tools
from scrun.supervisor.log.journal import Journal

TOOLS = Tools("salloc", ("srun",), "scancel", None, (), "/bin/squeue")
GRANTED = ChildEnv({"SLURM_JOB_ID": "5"})
TERMS = AllocationRequest((), "/", "", 10)


LIMITED = "salloc: RPC rate limited 1 time(s). Sleeping then trying again."
NEXT = "salloc: JobId=5 returned by the controller"


@pytest.fixture
def request_of_seven(tmp_path: Path) -> Iterator[JobRequest]:
    """That of a container which ends with 7."""
    journal = Journal(str(tmp_path / "log"), Log(), "one")
    yield JobRequest(
        container="one", child_env=ChildEnv({}), directory="/", record="/", journal=journal,
        on_job_id=lambda *_: None, on_lost=lambda _: None, ending=lambda: exited(7),
    )  # fmt: skip
    journal.close()


async def test_a_successor_reads_it_again(request_of_seven: JobRequest) -> None:
    """Whoever has read it may die before any keeper knows."""
    ours, theirs = socket.socketpair()
    with theirs, trio.fail_after(20):
        async with (
            child(["/bin/sh", "-c", KEEPALIVE], GRANTED, stdin=theirs.fileno()) as salloc,
            trio.open_nursery() as nursery,
        ):
            theirs.close()

            @asynccontextmanager
            async def held(sock: socket.socket) -> AsyncIterator[None]:
                line = trio.socket.from_stdlib_socket(sock)
                allocation = SallocConversation(TOOLS, Queue(TOOLS), request_of_seven, TERMS)
                async with allocation.held(salloc, line) as granted:
                    assert granted is not None
                    assert granted.environment["SLURM_JOB_ID"] == "5"
                    yield

            async def hold(sock: socket.socket, task_status: trio.TaskStatus[None]) -> None:
                async with held(sock):
                    task_status.started()
                    await trio.sleep_forever()

            last = ours.dup()
            await nursery.start(lambda task_status: hold(ours, task_status))
            async with held(last):
                pass
            assert await salloc.wait() == 7
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ((), True),
        (("salloc: Granted job allocation 5",), True),
        # why it waits is for squeue to say; and nobody waits for its end
        (("salloc: Pending job allocation 5",), False),
        (("salloc: Granted job allocation 5", "salloc: Relinquishing job allocation 5"), False),
    ],
)
async def test_slurmctld_slows_salloc_down(
    request_of_seven: JobRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: tuple[str, ...],
    told: bool,
) -> None:
    news: list[Waiting | None] = []
    queue, spared = Queue(TOOLS), list[str]()
    monkeypatch.setattr(queue, "spare", lambda: spared.append("now"))
    request = msgspec.structs.replace(request_of_seven, on_waiting=news.append)
    conversation = SallocConversation(TOOLS, queue, request, TERMS)
    for line in (*before, LIMITED, LIMITED, NEXT):
        conversation.feed(line)
    assert news == ([Waiting(RATE_LIMITED), None] if told else [])
    log = (tmp_path / "log").read_text()
    assert log.count(LIMITED) == 2
    assert log.count(": RateLimited (slurmctld limits how often") == told
    assert len(spared) == 2
