"""`scrun list`: what records say, whoever wrote them and whatever became of them."""

import fcntl
import json
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scrun.client.find import containers
from scrun.commands import list as listing
from scrun.commands.top_rows import line_of
from scrun.core.paths import LOOKED
from scrun.model.identity import myself
from scrun.model.record import Record, read_record, write_record
from tests.harness.program import output_of, run_program
from tests.harness.site import scrun_binary
from tests.harness.users import ordinary

OWNER = pwd.getpwuid(os.geteuid()).pw_name
RUNNING = Record(
    id="run",
    status="running",
    pid=4711,
    bundle="/b/run",
    oci_version="1.1.0",
    job_id="42",
    annotations={
        "org.scrun.job_id": "42",
        "org.scrun.nodes": "n[1-2]",
        "org.example": "x",
    },
    created="2026-11-21T13:00:00Z",
    rootfs="/b/run/rootfs",
)


class Root:
    """A root directory, and a supervisor's socket that somebody listens on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.server.bind(str(path / "@live"))
        self.server.listen()
        (path / "@live.lock").touch()
        # nobody holds the locks of the records here: a supervisor that looks for leftovers, as
        # `list` starts one in a root directory that is new, would take them for a dead one's
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        (path / LOOKED).write_text(boot)
        dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        dead.bind(str(path / "@dead"))
        dead.close()

    def add(self, record: Record, supervisor: str = "@live") -> Path:
        directory = self.path / record.id
        directory.mkdir()
        (directory / "supervisor").symlink_to(f"../{supervisor}")
        write_record(str(directory), record)
        return directory

    def call(self, *options: str, status: int = 0) -> str:
        done = subprocess.run(
            [scrun_binary(), "--root", str(self.path), "list", *options],
            env={"PATH": "/usr/bin:/bin", "TZ": "UTC", "LC_ALL": "C.UTF-8"},
            capture_output=True,
            timeout=20,
        )
        assert (done.returncode, done.stderr) == (status, b"")
        return done.stdout.decode()

    def rows(self) -> dict[str, dict[str, Any]]:
        """What the command prints as JSON, by id."""
        printed = json.loads(self.call("--format", "json"))
        return {row["id"]: row for row in printed}

    def cells(self) -> dict[str, list[str]]:
        """The cells of the table, by id; those of the last column as one."""
        head, *lines = self.call().splitlines()
        assert tuple(head.split()) == listing.HEAD
        return {line.split()[0]: line.split(maxsplit=len(listing.HEAD) - 1) for line in lines}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    made = Root(tmp_path / "r")
    yield made
    made.server.close()


def test_nothing(root: Root) -> None:
    assert root.call("--format", "json") == "[]\n"
    assert root.call("--quiet") == ""
    assert tuple(root.call().split()) == listing.HEAD


def test_no_root_directory_is_no_container(root: Root) -> None:
    root.path = root.path / "none"
    test_nothing(root)


def test_a_root_directory_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run_program([scrun_binary(), "--root", str(tmp_path / "file"), "list"])
    assert done.returncode == 1
    assert done.stderr == f"scrun: {tmp_path}/file: Not a directory\n"


@pytest.mark.covers("scrun list")
def test_the_members_of_json(root: Root) -> None:
    root.add(RUNNING)
    assert root.rows()["run"] == {
        "ociVersion": "1.1.0",
        "id": "run",
        "pid": 4711,
        "status": "running",
        "bundle": "/b/run",
        "rootfs": "/b/run/rootfs",
        "created": "2026-11-21T13:00:00Z",
        "annotations": RUNNING.annotations,
        "owner": OWNER,
    }


def test_all_columns_of_runc(tmp_path: Path) -> None:
    done = run_program(["runc", "--root", str(tmp_path), "list"], check=True)
    assert {*done.stdout.split()} >= {"ID", "STATUS"}
    assert {*done.stdout.split()} <= {*listing.HEAD}


@pytest.mark.covers("scrun list")
def test_the_table(root: Root) -> None:
    long = "f" * 200
    root.add(RUNNING)
    root.add(Record(id=long, status="paused", pid=1, bundle="/b/x y\n\x1b[2J"))
    cells = root.cells()
    assert cells["run"][:8] == [
        "run", "4711", "running", "42", "n[1-2]", "2026-11-21T13:00:00Z", OWNER, "/b/run",
    ]  # fmt: skip
    assert cells["run"][8] == "-"
    assert cells[long][2:6] == ["paused", "-", "-", "-"]
    assert r"/b/x y\n\x1b[2J" in root.call()
    lines = root.call().splitlines()
    assert len(lines) == 3
    assert all(line == line.rstrip() for line in lines)
    places = [
        line.index(word) for line, word in zip(lines, ("STATUS", "paused", "running"), strict=True)
    ]
    assert places == [len(long) + 8] * 3


@pytest.mark.covers("scrun list")
def test_the_job_of_a_container_in_a_task_is_slurms(root: Root) -> None:
    """Its own number is that of crun's or runc's container: in Slurm it is somebody else's job."""
    told = {"org.scrun.job_id": "7", "org.scrun.task": "1234.0.1", "org.scrun.nodes": "n[1-2]"}
    root.add(Record(id="rank", status="running", pid=1, job_id="7", annotations=told))
    assert root.cells()["rank"][3:5] == ["1234", "n[1-2]"]
    assert line_of(root.rows()["rank"], {}).job == "1234"


@pytest.mark.covers("scrun list")
def test_quiet_prints_ids_alone(root: Root) -> None:
    root.add(RUNNING)
    root.add(Record(id="a.b"))
    (root.path / "damaged").mkdir()
    assert root.call("-q") == root.call("-q", "-f", "json") == "a.b\ndamaged\nrun\n"


@pytest.mark.covers("scrun list")
@pytest.mark.parametrize("supervisor", ["@dead", "@none"])
@pytest.mark.parametrize("status", ["creating", "created", "running", "paused"])
def test_without_its_supervisor_it_is_stopped(root: Root, supervisor: str, status: str) -> None:
    root.add(Record(id="c", status=status, pid=9, job_id="7"), supervisor)
    row = root.rows()["c"]
    assert (row["status"], row["pid"]) == ("stopped", 0)
    assert row["annotations"]["org.scrun.reason"] == "scrun-failure"
    assert root.cells()["c"][-1] == "scrun-failure: the supervisor was lost"


@pytest.mark.parametrize("goes_on", [True, False])
def test_one_that_is_about_to_be_adopted(root: Root, *, goes_on: bool) -> None:
    """It lives as long as the process does that stands for it, as for `state`."""
    pid = os.getpid() if goes_on else 1 << 22  # more than there can be
    record = Record(id="c", status="running", pid=pid, supervisor=myself())
    with (root.add(record, "@dead") / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        status = json.loads(root.call("--format", "json"))[0]["status"]
    assert status == ("running" if goes_on else "stopped")


def test_a_successor_that_has_not_come_to_it_yet(root: Root) -> None:
    """It listens already, and its own `state` says the same."""
    dead = msgspec.structs.replace(myself(), pid=1 << 22)  # more than there can be
    directory = root.add(Record(id="c", status="running", pid=os.getpid(), supervisor=dead))
    assert root.rows()["c"]["status"] == "stopped"
    with (directory / "lock").open("w") as lock:  # it is about to be adopted
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert root.rows()["c"]["status"] == "running"


def test_one_that_had_ended_keeps_its_own_end(root: Root) -> None:
    told = {"org.scrun.reason": "exited", "org.scrun.exit_status": "3"}
    root.add(Record(id="c", status="stopped", pid=9, annotations=told), "@dead")
    assert root.rows()["c"]["annotations"] == told
    assert root.cells()["c"][-1] == "exited 3"


def test_one_that_ends_meanwhile_keeps_its_own_end(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its supervisor writes the end and goes, after the record was read and before it is asked."""
    directory = root.add(Record(id="c", status="running", pid=9), "@dead")
    told = {"org.scrun.reason": "exited", "org.scrun.exit_status": "0"}

    def ended(*_: object) -> bool:
        write_record(str(directory), Record(id="c", status="stopped", annotations=told))
        return False

    monkeypatch.setattr(listing, "_is_served", ended)
    (row,) = listing.rows(str(root.path), ["c"])
    assert (row["status"], row["annotations"]) == ("stopped", told)


def test_one_that_is_deleted_meanwhile_is_no_row(root: Root) -> None:
    assert listing.rows(str(root.path), ["gone"]) == []


@pytest.mark.by_root
def test_unknown_is_not_dead(root: Root) -> None:
    """Whoever may not connect knows nothing about the supervisor."""
    user = ordinary()
    root.add(RUNNING)
    user.give(root.path)
    (root.path / "@live").chmod(0o700)
    os.lchown(root.path / "@live", 0, 0)
    root.path.parent.chmod(0o755)
    for parent in root.path.parents:  # pytest's directories are root's alone
        if parent != Path("/tmp") and parent.is_relative_to("/tmp"):
            parent.chmod(0o755)
    said = output_of(
        [*user.prefix, scrun_binary(), "--root", str(root.path), "list", "-f", "json"],
        env=user.environment,
    )
    assert json.loads(said)[0]["status"] == "running"


@pytest.mark.parametrize("content", [b"{", b'{"id":"bad","pid":"x"}', b"", None])
def test_a_damaged_record_is_one_row(root: Root, content: bytes | None) -> None:
    root.add(RUNNING)
    bad = root.add(Record(id="bad")) / "state.json"
    bad.unlink()
    if content is None:
        bad.mkdir()  # not to be read at all
    else:
        bad.write_bytes(content)
    rows = root.rows()
    assert rows["run"]["status"] == "running"
    assert (rows["bad"]["status"], rows["bad"]["pid"]) == ("unknown", 0)
    assert rows["bad"]["owner"] == rows["run"]["owner"]
    assert "state.json" in root.cells()["bad"][-1]


def test_what_is_no_record(root: Root) -> None:
    (root.path / "file").touch()
    (root.path / "@tmpx").mkdir()
    (root.path / "with blank").mkdir()
    (root.path / "link").symlink_to(root.path)
    assert root.call("-q") == ""


def test_a_bundle_that_is_not_utf8(root: Root) -> None:
    root.add(Record(id="c", status="stopped", bundle=os.fsdecode(b"/b/\xff")))
    assert root.rows()["c"]["bundle"] == "/b/?"
    assert root.cells()["c"][7] == "/b/?"


@pytest.mark.covers("scrun list")
@pytest.mark.parametrize(
    ("status", "annotations", "expected"),
    [
        ("creating", {}, ""),
        ("creating", {"pending": "Resources"}, "pending: Resources"),
        (
            "creating",
            {"pending": "Priority", "estimated_start": "2020-01-02T03:04:05Z"},
            "pending: Priority, starts about 2020-01-02 03:04",
        ),
        (
            "creating",
            {"pending": "Priority", "estimated_start": "soon"},
            "pending: Priority, starts about soon",
        ),
        ("running", {"reason": "x"}, ""),
        ("running", {"pending": "Resources"}, "pending: Resources"),
        ("created", {"pending": "Resources"}, "pending: Resources"),
        ("stopped", {"pending": "Resources"}, ""),
        ("stopped", {"reason": "killed", "exit_status": "137"}, "killed 137"),
        (
            "stopped",
            {"reason": "time-limit", "exit_status": "124", "message": "job 7 ran out of time"},
            "time-limit 124: job 7 ran out of time",
        ),
        ("stopped", {}, ""),
    ],
)
def test_information(
    monkeypatch: pytest.MonkeyPatch, status: str, annotations: dict[str, str], expected: str
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    told = {f"org.scrun.{name}": text for name, text in annotations.items()}
    assert listing.information(status, told) == expected


def test_a_start_today_is_told_without_the_day(monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import datetime

    now = datetime.now().astimezone().replace(hour=14, minute=5)
    told = {"org.scrun.pending": "Priority", "org.scrun.estimated_start": now.isoformat()}
    assert listing.information("creating", told) == "pending: Priority, starts about 14:05"


def test_only_what_has_changed_is_read_again(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(directory: str) -> Record:
        read.append(os.path.basename(directory))
        return read_record(directory)

    monkeypatch.setattr(listing, "read_record", counted)
    for name in ("changes", "goes", "stays"):
        root.add(Record(id=name, status="created", pid=1))
    known: listing.Known = {}

    def statuses() -> dict[object, object]:
        found = listing.rows(str(root.path), containers(str(root.path)), known=known)
        return {row["id"]: row["status"] for row in found}

    assert set(statuses().values()) == {"created"}
    assert sorted(read) == ["changes", "goes", "stays"]
    read.clear()
    changed = Record(id="changes", status="running", pid=1)  # as long as before
    write_record(str(root.path / "changes"), changed)
    shutil.rmtree(root.path / "goes")
    assert statuses() == {"changes": "running", "stays": "created"}
    assert read == ["changes"]
    assert len(known) == 2


def test_one_connection_for_all_of_a_supervisor(root: Root) -> None:
    for number in range(20):
        root.add(Record(id=f"c{number}", status="running", pid=1))
    assert len(listing.rows(str(root.path), containers(str(root.path)))) == 20
    root.server.setblocking(False)
    root.server.accept()[0].close()
    with pytest.raises(BlockingIOError):
        root.server.accept()
