"""Whose job it is that a dead supervisor has allocated."""

import fcntl
import os
from pathlib import Path

import pytest

from scrun.model.record import Record, write_record
from scrun.supervisor.containers.orphans import lives


@pytest.mark.parametrize(
    ("status", "owns_job", "owned", "counts", "counts_too"),
    [
        ("running", True, True, True, True),
        ("running", True, False, False, False),
        ("stopped", True, True, False, True),  # whoever adopted it gives the job back
        ("stopped", False, True, False, False),  # and has done so
        ("stopped", True, False, False, False),
    ],
)
def test_it_is_theirs_who_have_adopted_its_container(
    tmp_path: Path, status: str, owns_job: bool, owned: bool, counts: bool, counts_too: bool
) -> None:
    directory = tmp_path / "c1"
    directory.mkdir()
    write_record(str(directory), Record(id="c1", job_id="7", owns_job=owns_job, status=status))
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if owned:
            fcntl.flock(lock, fcntl.LOCK_EX)
        assert lives(str(tmp_path), "7") is counts
        assert lives(str(tmp_path), "7", until_given_back=True) is counts_too
        assert not lives(str(tmp_path), "8", until_given_back=True)
    finally:
        os.close(lock)
