"""The record of a container, on disk at every moment."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.model.record import Moved, Record, read_record, write_record
from scrun.model.waiting import Waiting
from scrun.settings.file.load import Log
from scrun.supervisor.containers.ledger import Ledger
from scrun.supervisor.log.journal import Journal, Shown


class Books:
    """A ledger, its directory, and what its journal has said."""

    def __init__(self, directory: Path, record: Record) -> None:
        self.directory = directory
        self.journal = Journal(str(directory / "log"), Log(level="verbose"), record.id, Shown())
        self.told: list[str] = []
        self.journal.show_live(self.told.append)
        write_record(str(directory), record)
        self.ledger = Ledger(str(directory), record, self.journal, lock=-1)

    @property
    def on_disk(self) -> Record:
        return read_record(str(self.directory))

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    directory = tmp_path / "box"
    directory.mkdir()
    found = Books(directory, Record("box", pid=7, bundle="/b", annotations={"a": "1"}))
    yield found
    found.journal.close()


def test_what_is_known_already_is_not_written_again(books: Books) -> None:
    before = (books.directory / "state.json").stat().st_ino
    books.ledger.note(status="creating", annotations={"a": "1"})
    books.ledger.note_all({"a": "1"})
    assert (books.directory / "state.json").stat().st_ino == before
    books.ledger.note(status="created")
    assert (books.directory / "state.json").stat().st_ino != before


def test_what_may_be_written_later_comes_with_the_next_change(books: Books) -> None:
    books.ledger.note(staged="/s", later=True)
    assert books.on_disk.staged == ""
    assert books.ledger.record.staged == "/s"
    books.ledger.note(staged="/s")
    assert books.on_disk.staged == "/s"
    books.ledger.job_is_known("5", owned=False)
    assert books.on_disk.job_id == ""
    books.ledger.note(status="created")
    assert (books.on_disk.job_id, books.on_disk.status) == ("5", "created")
    books.ledger.job_is_known("6", owned=True)  # else nobody would release it
    assert books.on_disk.job_id == "6"


def test_what_is_noted_is_on_disk_and_annotations_are_added(books: Books) -> None:
    books.ledger.note(status="running", annotations={"b": "2"})
    assert books.on_disk.status == "running"
    assert books.on_disk.annotations == {"a": "1", "b": "2"}
    books.ledger.note(annotations={"a": "3"})
    assert books.on_disk.annotations == {"a": "3", "b": "2"}
    books.ledger.note(annotations={})
    books.ledger.note(job_id="5")
    assert books.on_disk == books.ledger.record
    assert books.on_disk.annotations == {"a": "3", "b": "2"}
    books.ledger.note_all({"c": "4"})
    assert books.on_disk.annotations == {"c": "4"}


def test_nobody_s_own_mapping_is_changed(tmp_path: Path, books: Books) -> None:
    mine = {"x": "1"}
    books.ledger.note_all(mine)
    books.ledger.note(annotations={"y": "2"})
    assert mine == {"x": "1"}


def test_an_unknown_member_is_a_fault(books: Books) -> None:
    with pytest.raises(TypeError):
        books.ledger.note(stauts="running")
    assert books.on_disk.status == "creating"


def test_the_job_is_told_once(books: Books) -> None:
    books.ledger.job_is_known("12", True)
    books.ledger.job_is_known("12", False)
    assert (books.on_disk.job_id, books.on_disk.owns_job) == ("12", False)
    assert books.on_disk.annotations["org.scrun.job_id"] == "12"
    assert books.log.count("the job is 12") == 1


def test_what_it_waits_for_comes_and_goes(books: Books) -> None:
    books.ledger.job_is_known("12", True)
    books.ledger.job_waits(Waiting("Resources", 1e9))
    assert books.on_disk.annotations == {
        "a": "1",
        "org.scrun.job_id": "12",
        "org.scrun.pending": "Resources",
        "org.scrun.estimated_start": "2001-09-09T01:46:40Z",
    }
    books.ledger.job_waits(Waiting("Priority"))
    assert books.on_disk.annotations["org.scrun.pending"] == "Priority"
    assert "org.scrun.estimated_start" not in books.on_disk.annotations
    books.ledger.job_waits(None)
    assert books.on_disk.annotations == {"a": "1", "org.scrun.job_id": "12"}
    assert [line.partition(",")[0] for line in books.told] == [
        "job 12 pending: Resources",
        "job 12 pending: Priority",
        "",
    ]


def test_state(books: Books) -> None:
    books.ledger.note(oci_version="1.1.0", annotations={"b": '"\n'})
    assert json.loads(books.ledger.state("paused")) == {
        "ociVersion": "1.1.0",
        "id": "box",
        "status": "paused",
        "pid": 7,
        "bundle": "/b",
        "annotations": {"a": "1", "b": '"\n'},
    }
    assert books.on_disk.status == "creating"


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("deleted", [True, False])
@pytest.mark.parametrize(("owned", "job", "stays"), [(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 0)])
async def test_what_may_be_left_is_kept(
    books: Books, there: bool, moved: bool, deleted: bool, owned: int, job: int, stays: int
) -> None:
    """A record that is removed next is not written once more."""
    staged = books.directory / "bundle"
    script = Moved("/s", str(staged), "/b", "/r", "/r", "/spool", "/b/config.json", 1, 1)
    books.ledger.note(
        job_id="5", owns_job=bool(owned), staged=str(staged), stager="lua",
        moved=script if moved else None,
    )  # fmt: skip
    if there:
        staged.symlink_to("nowhere")
    before = books.on_disk
    await books.ledger.keep_what_is_left(job=bool(job), deleted=deleted)
    left = books.ledger.record
    assert books.on_disk == (left if left.is_left or not deleted else before)
    assert left.job_id == "5"  # `list` shows it
    assert left.owns_job is bool(stays)
    assert left.staged == (str(staged) if there else "")
    assert left.stager == ("lua" if there or moved else "")
    assert left.moved == (script if moved else None)
    assert left.is_left is (there or moved or bool(stays))
    assert ("could not be removed" in books.log) is there


def test_a_path_that_is_not_utf_8(books: Books) -> None:
    books.ledger.note(rootfs="/\udcff", annotations={"x": "\udcff"})
    assert books.on_disk == books.ledger.record


def test_a_record_that_cannot_be_written_ends_nothing(books: Books) -> None:
    (books.directory / "state.json").unlink()
    (books.directory / "state.json").mkdir()
    books.ledger.note(status="running")
    assert books.ledger.record.status == "running"
    assert "state.json: " in books.log
    (books.directory / "state.json").rmdir()
    books.ledger.note(pid=8)
    assert (books.on_disk.status, books.on_disk.pid) == ("running", 8)


def test_the_record_of_another_one_is_not_written(books: Books) -> None:
    """The root directory was removed, and another supervisor has made a container of this id."""
    books.directory.rename(books.directory.with_name("gone"))
    books.ledger.note(status="running")
    books.directory.mkdir()
    assert not books.ledger.is_there
    books.ledger.note(status="stopped")
    assert list(books.directory.iterdir()) == []
