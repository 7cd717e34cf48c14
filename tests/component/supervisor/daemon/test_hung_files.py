"""A file system that does not answer stops nobody but those who need it."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import trio

from scrun.model.record import Record, read_record, write_record
from scrun.oci.config import load_bundle
from scrun.settings.file.load import Log, Settings, Staging
from scrun.supervisor.children.processes import ChildEnv, child
from scrun.supervisor.containers.ledger import Ledger
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.contracts.engine import Job, JobRequest
from scrun.supervisor.contracts.stager import Submission
from scrun.supervisor.engines.local.engine import LocalEngine
from scrun.supervisor.log import files as log_files
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.plugins.choose import WholeJob
from scrun.supervisor.staging import builtin
from scrun.supervisor.staging.staged_bundle import directory_for
from tests.component.supervisor.daemon.test_server import NOBODY, Supervisor, base, running
from tests.harness import users
from tests.harness.disk import Disk
from tests.harness.hung import hung
from tests.harness.processes import descendants
from tests.harness.wait import wait_until, wait_while

__all__ = ["base"]  # a fixture


@pytest.fixture
def disk(base: Path) -> Iterator[Disk]:
    with contextlib.closing(Disk(base)) as made:
        yield made


def logging_to(supervisor: Supervisor, disk: Disk) -> Path:
    file = disk.place / "log"
    with supervisor.config.open("a") as settings:
        settings.write(f'[log]\nlevel = "debug"\nfile = "{file}"\n')
    return file


def one_hangs() -> bool:
    """Whether a thread of this process is where nothing can interrupt it."""
    found = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended
            state = Path("/proc/self/task", task, "stat").read_text()
            found.append(state.rpartition(")")[2].split()[0])
    return "D" in found


def is_in(text: str, file: Path) -> bool:
    return file.exists() and text in file.read_text()


@pytest.mark.parametrize("before", [True, False], ids=["open before", "new"])
def test_a_log_file_that_hangs(base: Path, disk: Disk, *, before: bool) -> None:
    with running(base) as supervisor:
        file = logging_to(supervisor, disk)
        if before:
            assert supervisor.create(b"c0", b"/nonexistent")[:1] == b"\1"
            wait_until("the log", partial(is_in, "container c0", file))
        disk.freeze()
        answers: list[bytes] = []
        creates = [
            threading.Thread(
                target=lambda name: answers.append(supervisor.create(name, b"/nonexistent")),
                args=(b"c%d" % number,),
            )
            for number in range(1, 4)
        ]
        for thread in creates:
            thread.start()
        began = time.monotonic()
        for _ in range(10):
            assert supervisor.ask(*NOBODY)[:1] == b"\1"
        assert time.monotonic() - began < 5
        for thread in creates:
            thread.join(20)
        assert [answer[:1] for answer in answers] == [b"\1"] * 3
        assert all(b"/nonexistent" in answer for answer in answers)
        disk.thaw()
        for number in range(1, 4):
            said = f"container c{number}: /nonexistent"
            wait_until("the log", partial(is_in, said, file))


def test_a_root_directory_that_hangs_for_a_while(disk: Disk) -> None:
    """All whose records are in it wait, nobody is told what is not written, then all goes on."""
    with running(disk.place) as supervisor:
        disk.freeze()
        answers: list[bytes] = []
        create = threading.Thread(
            target=lambda: answers.append(supervisor.create(b"c1", b"/nonexistent"))
        )
        create.start()
        create.join(1)
        assert answers == []
        disk.thaw()
        create.join(20)
        assert [answer[:1] for answer in answers] == [b"\1"]
        assert b"/nonexistent" in answers[0]
        supervisor.serves()
        assert [name for name in os.listdir(supervisor.root) if name[0] != "@"] == []


@pytest.mark.parametrize("can_be_seen", [True, False])
@pytest.mark.parametrize("where", ["directory", "directory of what outlives us", "PATH"])
async def test_a_child_that_hangs_holds_nobody_else(
    tmp_path: Path, where: str, *, can_be_seen: bool
) -> None:
    """It cannot even be killed; and vfork holds whoever starts it until it executes something."""
    before = descendants(os.getpid())

    async def work(directory: Path, path: Path) -> int:
        setting = ChildEnv({"PATH": f"{path}:{users.PATH}"})
        stays = "outlives" in where
        async with child(
            ["/bin/true" if stays else "true"],
            setting,
            directory=str(directory),
            dies_with_us=not stays,
        ) as running:
            return await running.wait()

    with hung(tmp_path / "hung", can_be_seen=can_be_seen) as place:

        async def hang() -> None:
            with contextlib.suppress(OSError):
                directory, path = tmp_path, place.place
                if where != "PATH":
                    directory, path = path, directory
                await work(directory, path)

        began = time.monotonic()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hang)
            await trio.to_thread.run_sync(place.wait)
            assert await work(tmp_path, tmp_path) == 0
            assert time.monotonic() - began < 5
            place.fail()
    assert descendants(os.getpid()) == before


async def test_a_staged_bundle_whose_removal_hangs_stays_in_the_record(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for it for ever; its thread goes on, and so does whoever deletes it."""
    monkeypatch.setattr(builtin, "_CLEAN_UP", 0.5)
    (tmp_path / "b" / "rootfs").mkdir(parents=True)
    config = {
        "ociVersion": "1.0.2",
        "root": {"path": "rootfs"},
        "process": {"cwd": "/", "args": ["true"], "user": {"uid": 0, "gid": 0}},
    }
    (tmp_path / "b" / "config.json").write_text(json.dumps(config))
    record = Record("c1")
    directory = tmp_path / "c1"
    directory.mkdir()
    write_record(str(directory), record)
    journal = Journal(str(directory / "log"), Log(), "c1")
    ledger = Ledger(str(directory), record, journal, lock=-1)
    settings = Settings(staging=Staging(scratch=str(disk.place / "scratch")))
    engine = LocalEngine(str(tmp_path), settings.local, settings.runtime)
    request = JobRequest(
        "c1", ChildEnv({"PATH": users.PATH}), "/", str(directory), journal, print, print
    )
    staged = Path(directory_for(settings.staging, request))
    submission = Submission(
        load_bundle(str(tmp_path / "b")), settings, engine, request, trio.Event()
    )
    with trio.fail_after(30):
        async with builtin.BuiltIn(submission).staged(cast("Job", WholeJob(None)), {}) as place:
            assert place.bundle == str(staged)
            ledger.note(staged=str(staged), stager="builtin")
            disk.freeze()
        await ledger.keep_what_is_left(job=False, deleted=False)
        left = read_record(str(directory))
        assert (left.staged, left.stager, left.is_left) == (str(staged), "builtin", True)
        disk.thaw()
        await trio.to_thread.run_sync(wait_while, "the staged bundle", staged.exists)
        await ledger.keep_what_is_left(job=False, deleted=False)
        assert not read_record(str(directory)).is_left
    journal.close()


async def test_what_a_hung_log_file_does_not_take_is_counted(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "_WAITING", 1000)
    path = disk.place / "log"
    file = await log_files.open_file(Log(file=str(path)))
    assert file is not None
    disk.freeze()
    line = b"%099d\n"
    file.put(line % 0)
    # the writer has taken this one, and hangs with it: from now on it takes none
    wait_until("the writer hangs", one_hangs)
    began = time.monotonic()
    for number in range(1, 100):
        file.put(line % number)
    assert time.monotonic() - began < 1
    log_files.finish(0.2)
    assert file.lives
    disk.thaw()
    file.close()
    log_files.finish(20)
    assert not file.lives
    *lines, last = path.read_text().splitlines()
    assert [int(line) for line in lines] == list(range(11))  # that one, and room for ten
    assert "89 messages were lost: " in last


async def test_a_last_word_to_a_file_that_hangs(disk: Disk) -> None:
    """poll(2) calls a file ready, and who writes there waits: the thread, not the event loop."""
    file = disk.place / "errors"
    fds = [os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for _ in range(3)]
    stdio = Stdio(fds, terminal=False)
    stdio.say("before")
    await stdio.said()
    assert file.read_text() == "scrun: before\n"
    disk.freeze()
    began = time.monotonic()
    assert not await stdio.at_terminal()
    assert not await stdio.error_is_terminal()
    stdio.say("meanwhile")
    assert time.monotonic() - began < 0.2
    await stdio.said()
    assert 0.9 < time.monotonic() - began < 2
    stdio.close()
    other = os.open("/dev/null", os.O_RDWR)  # perhaps with the same number
    assert file.read_text() == "scrun: before\n"
    disk.thaw()
    wait_until("the word", lambda: file.read_text() == "scrun: before\nscrun: meanwhile\n")
    os.close(other)
