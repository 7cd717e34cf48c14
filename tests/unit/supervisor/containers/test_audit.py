"""Lines of the audit: what they say, and where they go."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from scrun.core.errors import SettingsError
from scrun.model.record import Record
from scrun.oci.config import Bundle
from scrun.settings.file.load import Settings
from scrun.supervisor.containers import audit
from scrun.supervisor.containers.audit import Trail, write_end
from scrun.supervisor.containers.ledger import Ledger
from scrun.supervisor.contracts.engine import JobRequest
from tests.unit.supervisor.containers.test_ledger import Books

pytestmark = pytest.mark.covers("promise an audit of each container")


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    directory = tmp_path / "box"
    directory.mkdir()
    annotations = {
        "org.scrun.reason": "exited", "org.scrun.exit_status": "3",
        "org.scrun.usage": '{"user":1.5,"memory":7}', "org.scrun.pod_name": "web",
    }  # fmt: skip
    record = Record(
        "box", pid=7, created="then", annotations=annotations, audit=f"{tmp_path}/audit"
    )
    found = Books(directory, record)
    yield found
    found.journal.close()


def lines(path: Path) -> list[tuple[str, str]]:
    told = map(json.loads, path.read_text().splitlines())
    return [(line["event"], line["container"]) for line in told]


async def test_they_are_written_in_their_order(books: Books, tmp_path: Path) -> None:
    trail = Trail(books.ledger, pytest.fail, required=False)
    assert trail.add("start")
    await trail.runs("sh")
    await trail.ended()
    assert lines(tmp_path / "audit") == [("start", "box"), ("exec", "box"), ("end", "box")]
    told = json.loads((tmp_path / "audit").read_text().splitlines()[-1])
    assert (told["status"], told["reason"], told["uid"]) == (3, "exited", os.getuid())
    assert (told["usage"], told["pod"]) == ({"user": 1.5, "memory": 7}, "web")
    assert books.on_disk.audit
    books.ledger.note(staged="")
    assert books.on_disk.audit == ""
    await trail.ended()
    assert not trail.add("start")
    assert len(lines(tmp_path / "audit")) == 3


def test_one_that_ends_before_its_first_line_has_no_last_one(books: Books) -> None:
    assert Trail(books.ledger, pytest.fail, required=False).place == books.ledger.record.audit
    books.ledger.note(pid=0)
    assert Trail(books.ledger, pytest.fail, required=False).place == ""


async def test_what_nobody_knows_it_has_used(books: Books, tmp_path: Path) -> None:
    """An image may have made up its status."""
    del books.ledger.record.annotations["org.scrun.usage"]
    books.ledger.record.annotations["org.scrun.exit_status"] = "9" * 5000
    await Trail(books.ledger, pytest.fail, required=False).ended()
    told = json.loads((tmp_path / "audit").read_text())
    assert (told["usage"], told["status"]) == (None, None)


async def test_nothing_is_written_where_nobody_wants_it(books: Books, tmp_path: Path) -> None:
    books.ledger.note(audit="")
    trail = Trail(books.ledger, pytest.fail, required=True)
    await trail.runs("sh")
    await trail.ended()
    assert not (tmp_path / "audit").exists()


@pytest.mark.parametrize(
    ("written", "known", "then"),
    [
        (["create"], True, ["create", "end"]),
        (["create", "end"], True, ["create", "end"]),
        ([], False, ["create", "end"]),
        (["create"], False, ["create", "end"]),
        ([], True, ["end"]),  # its first line was long ago
    ],
)
@pytest.mark.parametrize("adopted", [False, True])
async def test_whoever_comes_after_it_writes_what_is_missing(
    books: Books, tmp_path: Path, written: list[str], known: bool, then: list[str], adopted: bool
) -> None:
    """Its supervisor may have died between any two steps."""
    for event in written:
        audit._write(books.ledger.record.audit, audit._fields(books.ledger.record, event))
    books.ledger.note(is_audited=known)
    if adopted and "end" not in written:
        await Trail(books.ledger, pytest.fail, required=False).ended()
    else:
        assert await write_end(books.ledger.record) == ""
    assert [event for event, _ in lines(tmp_path / "audit")] == then
    other = Ledger(books.ledger.directory, Record("box", created="later"), books.journal, -1)
    assert not audit._has((tmp_path / "audit").read_bytes(), other.record, "end")


def _bundle() -> Bundle:
    process = SimpleNamespace(args=["true"])
    return cast(Bundle, SimpleNamespace(config=SimpleNamespace(mounts=[], process=process)))


async def test_nobody_waits_for_the_first_lines(
    books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their order is kept however long the first takes, and its record says when it is there."""
    goes_on, write = threading.Event(), audit._write

    def slow(target: str, fields: Mapping[str, Any]) -> None:
        assert goes_on.wait(20)
        write(target, fields)

    monkeypatch.setattr(audit, "_write", slow)
    books.ledger.note(is_audited=False)
    trail = Trail(books.ledger, pytest.fail, required=False)
    await trail.created(cast(JobRequest, None), _bundle(), cast(Settings, None))
    trail.started()
    trail.note(ends=False)
    assert not books.ledger.record.is_audited
    goes_on.set()
    assert await trail.flush() == ""
    trail.note(ends=False)
    assert books.ledger.record.is_audited
    await trail.ended()
    assert [event for event, _ in lines(tmp_path / "audit")] == ["create", "start", "end"]


async def test_where_there_is_no_thread_the_next_line_comes_with_the_first(
    books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of processes is no reason to refuse a container, nor to leave out a line."""

    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", refused)
    trail = Trail(books.ledger, pytest.fail, required=False)
    await trail.created(cast(JobRequest, None), _bundle(), cast(Settings, None))
    await trail.ended()
    assert [event for event, _ in lines(tmp_path / "audit")] == ["create", "end"]


async def test_one_without_a_beginning_has_no_other_line(books: Books, tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    books.ledger.note(is_audited=False)
    said, heard = [], trio.Event()

    def say(text: str) -> None:
        said.append(text)
        heard.set()

    trail = Trail(books.ledger, say, required=False)
    await trail.created(cast(JobRequest, None), _bundle(), cast(Settings, None))
    trail.started()
    with trio.fail_after(10):
        await heard.wait()
    assert said == [f"log.audit: {tmp_path}/audit: Is a directory"]
    assert books.ledger.record.audit == ""
    (tmp_path / "audit").rmdir()
    await trail.ended()
    assert not (tmp_path / "audit").exists()


@pytest.mark.parametrize("first", [0, 1])
async def test_no_beginning_whichever_thread_finds_it(
    books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    (tmp_path / "audit").mkdir()
    books.ledger.note(is_audited=False)
    threads: list[Callable[[], None]] = []
    said: list[str] = []
    trail = Trail(books.ledger, said.append, required=False)
    with monkeypatch.context() as patch:
        patch.setattr(trio.lowlevel, "start_thread_soon", lambda run, _: threads.append(run))
        await trail.created(cast(JobRequest, None), _bundle(), cast(Settings, None))
        trail.started()
    for number in (first, 1 - first):
        await trio.to_thread.run_sync(threads[number])
    assert said == [f"log.audit: {tmp_path}/audit: Is a directory"]
    assert books.ledger.record.audit == ""


async def test_a_required_line_that_cannot_be_written(books: Books, tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    trail = Trail(books.ledger, pytest.fail, required=True)
    with pytest.raises(SettingsError, match="Is a directory"):
        await trail.created(cast(JobRequest, None), _bundle(), cast(Settings, None))


async def test_a_file_that_cannot_be_written_is_told(books: Books, tmp_path: Path) -> None:
    (tmp_path / "audit").symlink_to("/etc/passwd")
    trail = Trail(books.ledger, pytest.fail, required=False)
    trail.add("start")
    said = f"log.audit: {tmp_path}/audit: Too many levels of symbolic links"
    assert await trail.flush() == said
    assert said in books.log
    assert await write_end(books.ledger.record) == said


def test_a_line_of_what_an_image_says_is_one_line(tmp_path: Path) -> None:
    record = Record("a\n\udcff", created="x", annotations={"org.scrun.nodes": "\n{\0é"})
    path = tmp_path / "audit"
    for _ in range(2):
        audit._write(str(path), audit._fields(record, "create", mounts=["\n" * 2000] * 9))
    first, second = map(json.loads, path.read_bytes().split(b"\n")[:-1])
    assert (first["container"], first["nodes"]) == ("a\n\udcff", "\n{\0é")
    assert first["mounts"] == second["mounts"] == ["\n" * 512] * 9


@pytest.mark.parametrize(("target", "most"), [("syslog", 8192), ("journald", 33_000)])
def test_daemons(target: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One datagram each, which ends as it has to; what does not fit is said."""
    place = str(tmp_path / "socket")
    monkeypatch.setattr(audit, "DEV_LOG" if target == "syslog" else "JOURNAL", place)
    fields = audit._fields(Record("box"), "create", mounts=["/" * 600] * 5000, requests=["a=b"])
    with pytest.raises(FileNotFoundError):
        audit._write(target, fields)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(place)
        audit._write(target, fields)
        told = daemon.recv(1 << 20).decode()
    assert len(told) < most
    line = json.loads(told[told.index("{") : told.rindex("}") + 1])
    assert line["requests"] == ["a=b"]
    assert len(line["mounts"]) + line["mounts_left_out"] == 5000
    assert "scrun-audit" in told
