"""What `stats` makes of two answers."""

import pytest

from scrun.commands.stats import Sample, clock, row_of

_BEFORE = Sample(at=100.0, cpu=1.0, memory=1, limit=None, threads=1)


@pytest.mark.parametrize(
    ("now", "percent"),
    [
        (Sample(102.0, 4.0, 5, 10, 3), 150.0),
        (Sample(102.0, 0.5, 5, 10, 3), 0.0),  # a process has gone, with what it had used
        (Sample(100.0, 4.0, 5, 10, 3), None),
        (Sample(3.0, 4.0, 5, 10, 3), None),  # its node has booted meanwhile
    ],
)
def test_a_row(now: Sample, percent: float | None) -> None:
    row = row_of("one", _BEFORE, now)
    assert row.pop("cpu_percent") == percent
    assert row == {
        "id": "one", "cpu_seconds": now.cpu, "memory": 5, "limit": 10, "threads": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("passed", "text"), [(0, "0:00.00"), (61.256, "1:01.26"), (3723.5, "1:02:03.50")]
)
def test_processor_time(passed: float, text: str) -> None:
    assert clock(passed) == text
