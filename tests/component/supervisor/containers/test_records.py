"""Records on a file system that has no space."""

import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.core.errors import SettingsError
from scrun.model.record import Record
from scrun.supervisor.containers.records import make_record, remove_record
from tests.harness.places import mounted

SOCKET = "@x"


def fill(directory: Path) -> None:
    for number in itertools.count():
        try:
            (directory / f"@filler{number}").touch()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A root directory with one record, in which no file can be made."""
    with mounted(tmp_path, "-o", "size=64k,nr_inodes=20"):
        os.close(make_record(str(tmp_path / "c1"), SOCKET, Record("c1")))
        fill(tmp_path)
        yield tmp_path


def records(root: Path) -> list[str]:
    return [name for name in os.listdir(root) if not name.startswith("@filler")]


def test_none_is_made(full: Path) -> None:
    with pytest.raises(SettingsError, match=os.strerror(errno.ENOSPC)):
        make_record(str(full / "c2"), SOCKET, Record("c2"))
    assert records(full) == ["c1"]


def test_one_can_be_removed(full: Path) -> None:
    remove_record(str(full / "c1"), SOCKET)
    assert records(full) == []
    os.close(make_record(str(full / "c2"), SOCKET, Record("c2")))


def test_one_that_is_gone(full: Path) -> None:
    remove_record(str(full / "c3"), SOCKET)
    assert records(full) == ["c1"]
