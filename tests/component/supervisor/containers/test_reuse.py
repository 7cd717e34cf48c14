"""Which ids may be used again: those of containers that are gone without `delete`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scrun.core.errors import ContainerExists, EngineError
from scrun.model.lost import LOST
from scrun.model.record import Record, read_record
from scrun.supervisor.containers.records import make_again, make_record, remove_record

SOCKET = "@user-1"
EXITED = {"org.scrun.reason": "exited"}


def record(status: str, run: str = "", job: str = "", **annotations: str) -> Record:
    called = {"called_in": job, "restarts": run}
    return Record("c1", status=status, annotations=annotations, engine_settings=called)


@contextmanager
def known(root: Path, old: Record) -> Iterator[Path]:
    """The directory of a record, whose lock is held."""
    lock = make_record(str(root / "c1"), SOCKET, old)
    try:
        yield root / "c1"
    finally:
        os.close(lock)


async def again(directory: Path, new: Record) -> int:
    """Make it; return how often the old one was deleted."""
    deleted: list[Path] = []

    async def delete() -> None:
        remove_record(str(directory), SOCKET)
        deleted.append(directory)

    os.close(await make_again(str(directory), SOCKET, new, AGAIN, delete))
    assert read_record(str(directory)) == new
    return len(deleted)


NEW = record("creating", "1", "42")
AGAIN = {"SLURM_JOB_ID": "42", "SLURM_RESTART_COUNT": "1"}


@pytest.mark.parametrize(
    "old",
    [
        record("running"),
        record("created"),
        record("stopped", **LOST),
        record("stopped", "", "42", **EXITED),
        record("stopped", "0", "42", **EXITED),
    ],
)
async def test_one_that_is_gone(tmp_path: Path, old: Record) -> None:
    with known(tmp_path, old) as directory:
        pass
    assert await again(directory, NEW) == 1


@pytest.mark.parametrize(
    "old",
    [
        record("stopped", **EXITED),
        record("stopped", "1", "42", **EXITED),
        record("stopped", "0", "43", **EXITED),
        record("stopped", "", "", **EXITED),
    ],
)
async def test_one_whose_end_somebody_may_ask_for(tmp_path: Path, old: Record) -> None:
    with known(tmp_path, old) as directory:
        pass
    with pytest.raises(ContainerExists):
        await again(directory, NEW)


@pytest.mark.parametrize("old", [record("running"), record("stopped", **LOST)])
async def test_one_that_somebody_works_on(tmp_path: Path, old: Record) -> None:
    with known(tmp_path, old) as directory, pytest.raises(ContainerExists):
        await again(directory, NEW)


async def test_one_of_an_earlier_run_that_still_ends(tmp_path: Path) -> None:
    with known(tmp_path, record("running", "", "42")) as directory:
        assert await again(directory, NEW) == 1


async def test_one_of_which_nothing_is_known(tmp_path: Path) -> None:
    """What is not known is not dead."""
    with known(tmp_path, record("running")) as directory:
        pass
    (directory / "state.json").write_text("{")
    with pytest.raises(ContainerExists):
        await again(directory, NEW)


async def test_one_that_cannot_be_deleted(tmp_path: Path) -> None:
    with known(tmp_path, record("running")) as directory:
        pass

    async def fail() -> None:
        raise EngineError("slurmctld does not answer")

    with pytest.raises(EngineError):
        await make_again(str(directory), SOCKET, NEW, AGAIN, fail)


async def test_a_new_one(tmp_path: Path) -> None:
    assert await again(tmp_path / "c1", NEW) == 0
