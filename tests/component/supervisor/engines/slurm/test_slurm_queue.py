"""How often squeue is asked about jobs that wait, and what is told of them; on a mocked clock."""

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from scrun.model.waiting import Waiting
from scrun.settings.file.load import GIVE_UP, Log
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.engines.slurm import pending
from scrun.supervisor.engines.slurm.pending import Queue
from scrun.supervisor.engines.slurm.tools import Tools
from scrun.supervisor.log.journal import Journal

TOOLS = Tools("salloc", ("srun",), "scancel", None, (), "/bin/squeue")
SETTING = ChildEnv({})
HOUR = 3600.0
Clock = trio.testing.MockClock


class Squeue:
    """Answers for all of the user's jobs, or the one that it is asked about; remembers when."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.jobs: list[str] = []
        self.began = trio.current_time()
        self.asked: list[tuple[float, list[str]]] = []
        self.reason: Callable[[str], str] = lambda job_id: "Resources"
        self.takes = 0.01

    async def output_of(self, argv: list[str], setting: ChildEnv) -> str:
        jobs = [argv[argv.index("--jobs") + 1]] if "--jobs" in argv else [*self.jobs]
        assert ("--me" in argv) is (jobs == self.jobs)
        self.asked.append((trio.current_time() - self.began, jobs))
        await trio.sleep(self.takes)
        return "".join(f"{job}|PENDING|N/A|{self.reason(job)}\n" for job in jobs)

    def waiter(self, job_id: str) -> "Waiter":
        self.jobs.append(job_id)
        return Waiter(self.directory, job_id)

    @property
    def moments(self) -> list[float]:
        return [round(moment, 1) for moment, _ in self.asked]


class Waiter:
    """A container whose job waits."""

    def __init__(self, directory: Path, job_id: str) -> None:
        self.job_id = job_id
        self.log = directory / job_id
        self.news: list[Waiting | None] = []
        self.in_vain: Waiting | None = None
        self._journal = Journal(str(self.log), Log(), job_id)

    async def wait(self, queue: Queue, because: str = "") -> None:
        request = JobRequest(
            container=f"c{self.job_id}", child_env=SETTING, directory="/", record="/",
            journal=self._journal, on_job_id=lambda *_: None, on_lost=lambda _: None,
            on_waiting=self.news.append,
        )  # fmt: skip
        try:
            self.in_vain = await queue.watch(request, SETTING, self.job_id, because)
        finally:
            self._journal.close()


@pytest.fixture
async def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Squeue:
    squeue = Squeue(tmp_path)
    monkeypatch.setattr(pending, "output_of", squeue.output_of)
    monkeypatch.setattr(pending, "real_id", lambda _: 1000)
    return squeue


async def crowd(squeue: Squeue, queue: Queue, number: int, every: float, lasts: float) -> None:
    """Let jobs come one after the other, and wait."""
    with trio.move_on_after(lasts):
        async with trio.open_nursery() as nursery:
            for job in range(number):
                nursery.start_soon(squeue.waiter(str(100 + job)).wait, queue)
                await trio.sleep(every)
            await trio.sleep_forever()


async def test_pauses_grow_to_a_minute(squeue: Squeue, autojump_clock: Clock) -> None:
    with trio.move_on_after(300):
        await squeue.waiter("7").wait(Queue(TOOLS))
    moments = squeue.moments
    assert moments[0] == 0.5
    pauses = [round(later - one) for one, later in itertools.pairwise(moments)]
    assert pauses[:6] == [2, 4, 8, 16, 32, 60]
    assert set(pauses[6:]) <= {60}


async def test_a_reason_that_comes_late_is_told_soon(
    squeue: Squeue, autojump_clock: Clock
) -> None:
    """A busy controller says none before its scheduler's first pass."""
    squeue.reason = lambda _: "Resources" if trio.current_time() - squeue.began > 11 else "None"
    waiter = squeue.waiter("7")
    with trio.move_on_after(13.5):
        await waiter.wait(Queue(TOOLS))
    assert waiter.news == [Waiting("Resources"), None]


async def test_a_hundred_jobs_are_one_question(squeue: Squeue, autojump_clock: Clock) -> None:
    waiters = [squeue.waiter(str(100 + number)) for number in range(100)]
    queue = Queue(TOOLS)
    with trio.move_on_after(60):
        async with trio.open_nursery() as nursery:
            for waiter in waiters:
                nursery.start_soon(waiter.wait, queue)
    assert len(squeue.asked) <= 7
    assert all(len(jobs) == 100 for _, jobs in squeue.asked)
    assert all(waiter.news == [Waiting("Resources"), None] for waiter in waiters)


async def test_a_hundred_jobs_that_came_one_after_the_other(
    squeue: Squeue, autojump_clock: Clock
) -> None:
    """In the second half of an hour they have grown old, whenever they came."""
    await crowd(squeue, Queue(TOOLS), 100, 17.3, HOUR)
    late = [jobs for moment, jobs in squeue.asked if moment > HOUR - 600]
    assert len(late) <= 10
    assert all(len(jobs) == 100 for jobs in late)


async def test_a_thousand_jobs_ask_once_a_minute(squeue: Squeue, autojump_clock: Clock) -> None:
    await crowd(squeue, Queue(TOOLS), 1000, 0, 600)
    assert len([moment for moment in squeue.moments if moment > 120]) <= 8


async def test_jobs_that_come_every_second_ask_every_four(
    squeue: Squeue, autojump_clock: Clock
) -> None:
    await crowd(squeue, Queue(TOOLS), 300, 1, 300)
    assert len(squeue.asked) <= 4 + 300 / 4 + 1


async def test_root_asks_for_one_job_at_a_time(
    squeue: Squeue, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more, or with --me, slurmctld would send root all jobs of the cluster."""
    monkeypatch.setattr(pending, "real_id", lambda _: 0)
    waiters, queue = [squeue.waiter(str(100 + number)) for number in range(3)], Queue(TOOLS)
    with trio.move_on_after(600):
        async with trio.open_nursery() as nursery:
            for waiter in waiters:
                nursery.start_soon(waiter.wait, queue)
    assert {len(jobs) for _, jobs in squeue.asked} == {1}
    assert len(squeue.asked) <= 3 * 16
    assert all(waiter.news == [Waiting("Resources"), None] for waiter in waiters)


async def test_nobody_asks_while_slurmctld_limits_the_user(
    squeue: Squeue, autojump_clock: Clock
) -> None:
    queue, waiter = Queue(TOOLS), squeue.waiter("7")
    queue.spare()
    with trio.move_on_after(120):
        await waiter.wait(queue)
    assert squeue.moments == [60, 62, 66, 74, 90]
    assert waiter.news == [Waiting("Resources"), None]


async def test_one_that_comes_late_is_told_within_a_second(
    squeue: Squeue, autojump_clock: Clock
) -> None:
    queue, late = Queue(TOOLS), squeue.waiter("8")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(squeue.waiter("7").wait, queue)
        await trio.sleep(1000)
        nursery.start_soon(late.wait, queue)
        await trio.sleep(1)
        assert late.news == [Waiting("Resources")]
        nursery.cancel_scope.cancel()


async def test_who_asks_may_go_in_the_middle_of_it(squeue: Squeue, autojump_clock: Clock) -> None:
    queue, other = Queue(TOOLS), squeue.waiter("8")
    squeue.takes = 5
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(2):
            async with trio.open_nursery() as first:
                first.start_soon(squeue.waiter("7").wait, queue)
                await trio.sleep(0.3)
                nursery.start_soon(other.wait, queue)
                await trio.sleep_forever()
        await trio.sleep(6)
        assert other.news == [Waiting("Resources")]
        assert len(squeue.asked) == 2
        nursery.cancel_scope.cancel()


async def test_no_squeue_is_no_news(squeue: Squeue, autojump_clock: Clock) -> None:
    waiter = squeue.waiter("7")
    with trio.move_on_after(300):
        await waiter.wait(Queue(Tools("salloc", ("srun",), "scancel", None, ())))
    assert (squeue.asked, waiter.news) == ([], [])


async def test_what_no_waiting_cures(squeue: Squeue, autojump_clock: Clock) -> None:
    """22.05 says PartitionConfig first, and the exact word when the scheduler has looked."""
    looks = trio.current_time() + 1
    squeue.reason = lambda _: (
        "PartitionConfig" if trio.current_time() < looks else "PartitionNodeLimit"
    )
    waiter = squeue.waiter("7")
    with trio.fail_after(5):
        await waiter.wait(Queue(TOOLS, GIVE_UP), "SCRUN_JOB_NUM_NODES=5 from config.json")
    assert waiter.in_vain == Waiting("PartitionNodeLimit")
    assert waiter.news == [Waiting("PartitionConfig"), Waiting("PartitionNodeLimit"), None]
    log = waiter.log.read_text()
    assert "job 7 pending: PartitionNodeLimit (the partition does not allow this number" in log
    assert "another SCRUN_PARTITION): SCRUN_JOB_NUM_NODES=5 from config.json" in log


async def test_one_that_is_told_late(squeue: Squeue, autojump_clock: Clock) -> None:
    """24.11 says None for up to three seconds; `create` answers after four."""
    looks = trio.current_time() + 2.9
    squeue.reason = lambda _: "None" if trio.current_time() < looks else "PartitionTimeLimit"
    waiter = squeue.waiter("7")
    with trio.fail_after(3.9):
        await waiter.wait(Queue(TOOLS, GIVE_UP))
    assert waiter.in_vain == Waiting("PartitionTimeLimit")
    assert waiter.news == [Waiting("PartitionTimeLimit"), None]


async def test_one_that_is_not_told_is_asked_about_less_and_less(
    squeue: Squeue, autojump_clock: Clock
) -> None:
    squeue.reason = lambda _: "None"
    with trio.move_on_after(HOUR):
        await squeue.waiter("7").wait(Queue(TOOLS, GIVE_UP))
    pauses = [round(later - one, 1) for one, later in itertools.pairwise(squeue.moments)]
    at_first = [pause for pause in pauses if pause < 3]
    assert len([pause for pause in at_first if pause < 1]) <= 8
    assert sum(at_first) < 24
    assert pauses[len(at_first) : len(at_first) + 4] == [4, 8, 16, 32]
    assert all(60 <= pause < 60.2 for pause in pauses[len(at_first) + 4 :])


async def test_a_reason_that_passes_is_waited_for(squeue: Squeue, autojump_clock: Clock) -> None:
    looks = trio.current_time() + 1
    squeue.reason = lambda _: "PartitionConfig" if trio.current_time() < looks else "Resources"
    waiter = squeue.waiter("7")
    with trio.move_on_after(HOUR):
        await waiter.wait(Queue(TOOLS, GIVE_UP))
    assert waiter.in_vain is None


async def test_a_site_that_wants_to_wait_waits(squeue: Squeue, autojump_clock: Clock) -> None:
    squeue.reason = lambda _: "PartitionNodeLimit"
    waiter = squeue.waiter("7")
    with trio.move_on_after(HOUR):
        await waiter.wait(Queue(TOOLS, ()))
    assert waiter.in_vain is None
    assert waiter.news == [Waiting("PartitionNodeLimit"), None]


@pytest.fixture
def shared(squeue: Squeue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root directory whose files are as old as the mocked clock says."""
    now = time.time()

    def clock() -> float:
        return now + trio.current_time() - squeue.began

    def write(path: str, content: bytes) -> None:
        Path(path).write_bytes(content)
        os.utime(path, (clock(), clock()))

    async def at_once(function: Callable[..., None], *arguments: object) -> None:
        function(*arguments)

    monkeypatch.setattr(pending, "time", SimpleNamespace(time=clock))
    monkeypatch.setattr(pending, "write_whole", write)
    monkeypatch.setattr(pending, "in_thread", at_once)
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


async def together(squeue: Squeue, queues: list[Queue]) -> list[Waiter]:
    """Let a job wait in each queue, 20 seconds one after the other."""
    waiters = []
    with trio.move_on_after(HOUR):
        async with trio.open_nursery() as nursery:
            for number, queue in enumerate(queues):
                waiters.append(squeue.waiter(str(100 + number)))
                nursery.start_soon(waiters[-1].wait, queue)
                await trio.sleep(20)
            await trio.sleep_forever()
    return waiters


async def test_supervisors_of_a_user_ask_as_often_as_one(
    squeue: Squeue, shared: Path, autojump_clock: Clock
) -> None:
    waiters = await together(squeue, [Queue(TOOLS, (), str(shared)) for _ in range(3)])
    late = [moment for moment in squeue.moments if moment > HOUR - 600]
    assert len(late) <= 10
    assert all(waiter.news == [Waiting("Resources"), None] for waiter in waiters)
    assert os.listdir(shared) == []


@pytest.mark.parametrize("how", ["link", "folder", "cluster", "old", "future", "owner"])
async def test_what_is_not_a_supervisors_answer(
    squeue: Squeue, shared: Path, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    text, file = "/bin/squeue None\n100|PENDING|N/A|Wrong\n", shared / "@queue"
    now = time.time()
    if how == "folder":
        file.mkdir()
    elif how == "link":
        (shared / "other").write_text(text)
        os.utime(shared / "other", (now + 0.4, now + 0.4))
        file.symlink_to("other")
    else:
        file.write_text(text.replace("None", "/etc/other.conf") if how == "cluster" else text)
        moment = now + {"old": -60, "future": 3600}.get(how, 0.4)
        os.utime(file, (moment, moment))
    if how == "owner":
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    waiter = squeue.waiter("100")
    with trio.move_on_after(5):
        await waiter.wait(Queue(TOOLS, (), str(shared)))
    assert waiter.news[0] == Waiting("Resources")


async def test_a_supervisors_answer_is_taken(
    squeue: Squeue, shared: Path, autojump_clock: Clock
) -> None:
    """As above, if nothing is wrong with it."""
    now, file = time.time(), shared / "@queue"
    file.write_text("/bin/squeue None\n100|PENDING|N/A|Right\n")
    os.utime(file, (now + 0.4, now + 0.4))
    waiter = squeue.waiter("100")
    with trio.move_on_after(1):
        await waiter.wait(Queue(TOOLS, (), str(shared)))
    assert (squeue.asked, waiter.news[0]) == ([], Waiting("Right"))


async def test_jobs_that_an_answer_is_too_short_for_are_not_missing(
    squeue: Squeue, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more than a MiB the rest is cut off."""

    async def output_of(argv: list[str], setting: ChildEnv) -> str:
        return "100|PENDING|N/A|Resources\n101|PEND"

    async def is_unknown(*_: object) -> bool:
        raise AssertionError

    monkeypatch.setattr(pending, "output_of", output_of)
    monkeypatch.setattr(pending, "is_unknown", is_unknown)
    waiter = squeue.waiter("102")
    with trio.move_on_after(60):
        await waiter.wait(Queue(TOOLS))
    assert waiter.news == []
