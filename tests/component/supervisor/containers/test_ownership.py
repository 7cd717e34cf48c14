"""Who cleans up a record of which a supervisor has died, and what others see meanwhile."""

import os
import shutil
import threading
from pathlib import Path

import msgspec
import pytest

from scrun.model.adoption import living_record
from scrun.model.identity import myself
from scrun.model.record import Record, read_record, write_record
from scrun.supervisor.containers import orphans
from scrun.supervisor.core.ownership import own


@pytest.fixture
def left(tmp_path: Path) -> str:
    """The record of a container whose supervisor has died, and all that it has left."""
    directory = tmp_path / "c1"
    directory.mkdir()
    (directory / "lock").touch()
    dead = msgspec.structs.replace(myself(), started=1)
    write_record(str(directory), Record(id="c1", status="running", supervisor=dead))
    return str(directory)


def test_one_that_is_cleaned_up_never_looks_as_if_it_lived(
    left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Record | None] = []
    note = orphans._note_owner

    def look_and_note(directory: str) -> None:
        seen.append(living_record(directory))
        note(directory)

    monkeypatch.setattr(orphans, "_note_owner", look_and_note)
    lock = orphans.own_orphan(left)
    assert lock is not None
    assert [*seen, living_record(left)] == [None, None]
    assert read_record(left).status == "stopped"
    assert orphans.own_orphan(left) is None
    os.close(lock)


@pytest.mark.parametrize("count", [2, 3])
def test_one_of_those_who_come_at_once_becomes_the_owner(left: str, count: int) -> None:
    together = threading.Barrier(count)

    def meet() -> None:
        together.wait(20)

    for _ in range(50):
        found: list[int | None] = []

        def take(found: list[int | None] = found) -> None:
            found.append(own(left, before=meet))

        threads = [threading.Thread(target=take) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        [lock] = [one for one in found if one is not None]
        os.close(lock)
        assert len(found) == count


def test_nothing_is_noted_of_another_one_with_its_name(
    left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is removed, and made again for another container, before it is locked."""
    lives = Record(id="c1", status="running", supervisor=myself())
    opened = os.open

    def open_then_replace(*arguments: object, **more: object) -> int:
        fd = opened(*arguments, **more)  # type: ignore[arg-type]
        monkeypatch.undo()
        shutil.rmtree(left)
        os.mkdir(left)
        Path(left, "lock").touch()
        write_record(left, lives)
        return fd

    monkeypatch.setattr(os, "open", open_then_replace)
    assert orphans.own_orphan(left) is None
    assert read_record(left) == lives
