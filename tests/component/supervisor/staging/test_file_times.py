"""Times to which those of files are compared."""

import time
from pathlib import Path

from scrun.supervisor.staging.volumes import time_at, time_here

COARSE = 5  # CLOCK_REALTIME_COARSE


def test_what_changes_later_has_a_later_time(tmp_path: Path) -> None:
    for number in range(5):
        before = time_here()
        assert time.clock_gettime_ns(COARSE) > before
        there = time_at(str(tmp_path))
        (tmp_path / f"{number}").touch()
        assert (tmp_path / f"{number}").stat().st_ctime_ns > max(before, there)
