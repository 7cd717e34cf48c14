"""The record of a container on disk: whoever wrote it, whatever became of it."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scrun.core.errors import StateError
from scrun.core.paths import LIMIT
from scrun.model.record import ProcessIdentity, Record, of_config, read_record, write_record

FULL = Record(
    id="c1",
    status="running",
    pid=4711,
    bundle="/b/ü",
    oci_version="1.1.0",
    engine="slurm",
    job_id="123",
    owns_job=False,
    staged="/s",
    annotations={"org.scrun.reason": "exited", "a": ""},
    engine_settings={"conf": "/etc/slurm/slurm.conf"},
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "c1"
    made.mkdir()
    return made


def write(directory: Path, content: bytes) -> None:
    (directory / "state.json").write_bytes(content)


@pytest.mark.parametrize("record", [FULL, Record(id="c1")], ids=["full", "bare"])
def test_round_trip(directory: Path, record: Record) -> None:
    write_record(str(directory), record)
    assert read_record(str(directory)) == record
    assert os.listdir(directory) == ["state.json"]


def test_replaced_as_a_whole(directory: Path) -> None:
    write_record(str(directory), FULL)
    with (directory / "state.json").open("rb") as old:
        write_record(str(directory), Record(id="c1", status="stopped"))
        assert json.loads(old.read())["status"] == "running"  # a reader keeps its version
    assert read_record(str(directory)).status == "stopped"


def test_what_a_killed_writer_left_is_no_matter(directory: Path) -> None:
    write_record(str(directory), FULL)
    (directory / ".state.json").write_bytes(b'{"id":"c1","sta')
    assert read_record(str(directory)) == FULL
    write_record(str(directory), FULL)
    assert os.listdir(directory) == ["state.json"]


def test_written_by_an_older_scrun(directory: Path) -> None:
    write(directory, b'{"id":"c1"}')
    record = read_record(str(directory))
    assert record == Record(id="c1")
    assert (record.status, record.owns_job, record.oci_version) == ("creating", True, "1.0.2")


def test_written_by_a_newer_scrun(directory: Path) -> None:
    newer = {
        **json.loads(b'{"id": "c1", "status": "running", "job_id": "7"}'),
        "new": {"deep": [1, None, {"x": 1e300}]},
        "zzz": 10**30,
    }
    write(directory, json.dumps(newer).encode())
    assert read_record(str(directory)) == Record(id="c1", status="running", job_id="7")


def test_defaults_are_not_shared(directory: Path) -> None:
    write(directory, b'{"id":"c1"}')
    read_record(str(directory)).annotations["a"] = "b"
    assert read_record(str(directory)).annotations == {}


def test_missing(directory: Path) -> None:
    with pytest.raises(StateError, match=r"container c1: .*incomplete"):
        read_record(str(directory))


def test_missing_with_its_directory(directory: Path) -> None:
    with pytest.raises(StateError):
        read_record(str(directory / "nobody"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 512,
        b"{",
        b"null",
        b"[]",
        b"id: c1",
        b"{}",
        b'{"id":null}',
        b'{"id":"c1","pid":"4711"}',
        b'{"id":"c1","pid":1e400}',
        b'{"id":"c1","annotations":{"a":1}}',
        b'{"id":"c1","annotations":[]}',
        b'{"id":"c1"} and more',
        b'{"id":"\xff"}',
    ],
)
def test_damaged(directory: Path, content: bytes) -> None:
    write(directory, content)
    with pytest.raises(StateError, match=r"state\.json: .*; delete the container") as caught:
        read_record(str(directory))
    assert "\n" not in str(caught.value)


def test_truncated_anywhere(directory: Path) -> None:
    write_record(str(directory), FULL)
    whole = (directory / "state.json").read_bytes()
    for length in range(len(whole)):
        write(directory, whole[:length])
        with pytest.raises(StateError):
            read_record(str(directory))


def test_nested_deeply(directory: Path) -> None:
    write(directory, b'{"id":"c1","new":' + b"[" * 200_000 + b"]" * 200_000 + b"}")
    with pytest.raises(StateError):
        read_record(str(directory))


def test_huge(directory: Path) -> None:
    with (directory / "state.json").open("wb") as file:
        file.write(b'{"id":"c1","new":"')
        file.truncate(LIMIT * 64)  # sparse: what is read of it is bounded
    with pytest.raises(StateError):
        read_record(str(directory))


@pytest.mark.usefixtures("no_descriptor_stays")
def test_unreadable(directory: Path) -> None:
    (directory / "state.json").mkdir()
    with pytest.raises(StateError, match="is not a regular file; delete the container"):
        read_record(str(directory))
    (directory / "state.json").rmdir()
    os.mkfifo(directory / "state.json")
    with pytest.raises(StateError, match="is not a regular file"):
        read_record(str(directory))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(directory: Path, content: bytes) -> None:
    write(directory, content)
    with pytest.raises(StateError):
        read_record(str(directory))


def test_directory_gone(directory: Path) -> None:
    directory.rmdir()
    with pytest.raises(FileNotFoundError):
        write_record(str(directory), FULL)


def test_paths_that_are_not_utf8(directory: Path) -> None:
    """A bundle's path is any bytes; the record must hold it, and give it back."""
    record = Record(id="c1", bundle=os.fsdecode(b"/b/\xff"), staged=os.fsdecode(b"/s/\xfe"))
    write_record(str(directory), record)
    assert read_record(str(directory)) == record


def test_a_record_of_the_first_version(tmp_path: Path) -> None:
    """As scrun 0.1.0 wrote it before containers outlived their supervisor."""
    (tmp_path / "state.json").write_text(
        '{"id": "c1", "status": "running", "pid": 4711, "bundle": "/b", "oci_version": "1.0.2", '
        '"engine": "slurm", "stager": "builtin", "job_id": "12", "owns_job": true, "staged": '
        '"/r/c1/bundle", "moved": null, "annotations": {"org.scrun.job_id": "12"}, "created": '
        '"2026-11-22T10:00:00.000000Z", "rootfs": "/b/rootfs", "pod": "", "engine_settings": '
        '{"slurm_conf": "/etc/slurm/slurm.conf", "config_file": ""}, "format": 2, "supervisor": '
        '{"pid": 99, "started": 5, "pid_namespace": 4026531836, "boot": "b", "host": "h"}, '
        '"until_delete": false}'
    )
    record = read_record(str(tmp_path))
    assert (record.id, record.status, record.job_id, record.format) == ("c1", "running", "12", 2)
    assert record.supervisor == ProcessIdentity(99, 5, 4026531836, "b", "h")
    assert record.is_unfinished


def test_annotations_of_config_json() -> None:
    """An image cannot say how its container ended; its user says which pod it is in."""
    counts = {"org.scrun.pod": "p", "com.example": "x", "run.oci.handler": "y"}
    names = ("reason", "exit_status", "message", "usage", "pending", "job_id", "name", "pod_name")
    made_up = {f"org.scrun.{name}": "0" for name in names}
    assert of_config({**made_up, **counts}) == counts
