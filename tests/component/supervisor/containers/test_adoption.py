"""Which of what a dead supervisor has left is adopted at all."""

import os
from pathlib import Path
from typing import Any, cast

import pytest

from scrun.model.record import Record, read_record, write_record
from scrun.supervisor.containers import adoption
from scrun.supervisor.containers.adoption import Adoption
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.core.deposits import Deposits
from scrun.supervisor.core.inheritance import Inheritance

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")


class TooFar(Exception):
    """What comes next is the business of a container that lives."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What was to be recalled of requests: the first that is done for one that is adopted."""
    found: list[int] = []

    def recalled(fd: int) -> tuple[CreateRequest, Any]:
        found.append(fd)
        raise TooFar

    monkeypatch.setattr(adoption, "recalled", recalled)
    return found


def left(root: Path, status: str) -> Inheritance:
    (directory := root / "c1").mkdir()
    (directory / "lock").touch()
    (directory / "supervisor").symlink_to(root / "@user")
    write_record(str(directory), Record(id="c1", status=status))
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CLOEXEC)
    request = os.memfd_create("request")
    return Inheritance(
        "c1", {"staged": {}, "phase": "RUNNING"}, {"own.lock": lock, "own.request": request}
    )


async def adopted(root: Path, found: Inheritance) -> list[object]:
    nothing = cast(Any, None)  # nobody is asked
    whole = Adoption(str(root), nothing, nothing, nothing, Deposits())
    return [*await whole.adopt([found], "@user")]


async def test_one_that_runs(tmp_path: Path, asked: list[int]) -> None:
    """It is to be adopted; what fails on the way is its own failure."""
    assert await adopted(tmp_path, left(tmp_path, "running")) == []
    assert len(asked) == 1


async def test_one_that_has_stopped(tmp_path: Path, asked: list[int]) -> None:
    """Its end was told: it would run again for whoever asks, and end a second time."""
    assert await adopted(tmp_path, left(tmp_path, "stopped")) == []
    assert asked == []
    assert read_record(str(tmp_path / "c1")).status == "stopped"


async def test_one_whose_id_another_one_has_now(tmp_path: Path, asked: list[int]) -> None:
    found = left(tmp_path, "running")
    (tmp_path / "c1" / "lock").unlink()
    (tmp_path / "c1" / "lock").touch()
    assert await adopted(tmp_path, found) == []
    assert asked == []


async def test_one_that_was_removed(tmp_path: Path, asked: list[int]) -> None:
    found = left(tmp_path, "running")
    (tmp_path / "c1").rename(tmp_path / "c2")
    assert await adopted(tmp_path, found) == []
    assert asked == []
