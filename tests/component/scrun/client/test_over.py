"""Deleting a container of which only the record is left."""

import fcntl
import os
import sys
import threading
from pathlib import Path

import pytest

from scrun import main as program
from scrun.client import reach
from scrun.client.reach import remove_over
from scrun.core import trees
from scrun.core.errors import StagingError, SupervisorLost
from scrun.model.lost import LOST
from scrun.model.record import Moved, Record
from scrun.supervisor.containers.records import link, make_record, remove_half_made
from tests import CHECKOUT
from tests.harness.program import run_program

PATH = f"import sys; sys.path.insert(0, {str(CHECKOUT)!r})"
SOCKET = "@user-1-2-3-v"
MOVED = Moved("/s.lua", "/b", "/b", "/r", "/r", "/spool", "/b/config.json", 1, 1)


def made(root: Path, **changes: object) -> Path:
    """The record of a container that is over, as its supervisor leaves it."""
    directory = root / "c1"
    known = {"status": "stopped", "job_id": "7", "owns_job": False, "engine": "slurm"}
    record = Record(id="c1", **{**known, **changes})  # type: ignore[arg-type]
    os.close(make_record(str(directory), SOCKET, record))
    link(str(directory), SOCKET)
    (directory / "spool").mkdir(exist_ok=True)
    (directory / "log").write_text("said\n")
    return directory


def test_nothing_is_left(tmp_path: Path) -> None:
    assert remove_over(str(made(tmp_path)), SOCKET)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("force", [True, False])
def test_no_supervisor_is_started(
    tmp_path: Path, force: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path)

    def start(*_: object) -> None:
        raise SupervisorLost("one was started")

    monkeypatch.setattr(reach, "delete", start)
    tmp_path.chmod(0o700)
    call = ["--root", str(tmp_path), "delete", *["--force"] * force, "c1"]
    assert program.run(call) == 0
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "running"},
        {"status": "created"},
        {"owns_job": True},
        {"owns_job": True, "until_delete": True},
        {"staged": "/scratch/c1"},
        {"moved": MOVED},
        {"annotations": LOST},
    ],
    ids=lambda changes: " ".join(changes),
)
def test_a_supervisor_is_needed(tmp_path: Path, changes: dict[str, object]) -> None:
    directory = made(tmp_path, **changes)
    assert not remove_over(str(directory), SOCKET)
    assert (directory / "state.json").exists()


def test_somebody_works_on_it(tmp_path: Path) -> None:
    directory = made(tmp_path)
    with (directory / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert not remove_over(str(directory), SOCKET)
    assert remove_over(str(directory), SOCKET)


@pytest.mark.parametrize("what", ["state.json", "supervisor", "lock"])
def test_it_is_not_a_whole_record(tmp_path: Path, what: str) -> None:
    directory = made(tmp_path)
    (directory / what).unlink()
    assert not remove_over(str(directory), SOCKET)
    assert directory.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b'"stopped"', b"\xff", b"{}", b'{"status": ["stopped"]}', b"[" * 100_000,
        b'{"status": "stopped", "job_id": 7}', b'{"status": "stopped", "annotations": 7}',
        b'{"status": "stopped", "job_id": "7", "owns_job": 0}',
    ],
)  # fmt: skip
def test_a_damaged_record(tmp_path: Path, content: bytes) -> None:
    directory = made(tmp_path)
    (directory / "state.json").write_bytes(content)
    assert not remove_over(str(directory), SOCKET)
    assert (directory / "state.json").read_bytes() == content


def test_an_older_record(tmp_path: Path) -> None:
    directory = made(tmp_path)
    (directory / "state.json").write_text('{"id": "c1", "status": "stopped"}')
    assert remove_over(str(directory), SOCKET)


def test_it_is_quick() -> None:
    """It imports no msgspec."""
    program = "import sys, scrun.client.reach, json, fcntl, scrun.core.trees; print(*sys.modules)"
    done = run_program([sys.executable, "-I", "-S", "-c", f"{PATH}; {program}"], check=True)
    assert "json" in done.stdout.split()
    assert not {"msgspec", "trio", "subprocess", "socket"} & {*done.stdout.split()}


@pytest.mark.parametrize("path", ["", "c1"])
@pytest.mark.by_root
def test_somebody_elses(tmp_path: Path, path: str) -> None:
    directory = made(tmp_path)
    os.chown(tmp_path / path, 1, 1)
    assert not remove_over(str(directory), SOCKET)


def test_a_starting_supervisor_removes_it_at_the_same_time(tmp_path: Path) -> None:
    """It removes what one of its name has left half removed."""
    for _ in range(50):
        directory = made(tmp_path)
        for name in range(20):
            (directory / f"{name}").mkdir()
        gone = threading.Event()

        def remove(gone: threading.Event = gone) -> None:
            while not gone.is_set():
                remove_half_made(str(tmp_path), SOCKET)

        thread = threading.Thread(target=remove)
        thread.start()
        try:
            assert remove_over(str(directory), SOCKET)
        finally:
            gone.set()
            thread.join()
        assert os.listdir(tmp_path) == []


def test_something_is_mounted_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise StagingError(f"{os.path.basename(path)}/bundle: something is mounted there")

    monkeypatch.setattr(trees, "remove_tree", refuse)
    with pytest.raises(StagingError) as raised:
        remove_over(str(made(tmp_path)), SOCKET)
    [name] = os.listdir(tmp_path)
    assert str(raised.value) == (
        f"{tmp_path}/{name}/bundle: something is mounted there: unmount it, and remove "
        f"{tmp_path}/{name}"
    )
