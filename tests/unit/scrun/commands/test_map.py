"""What `scrun map` says meanwhile, and at its end."""

import time

import pytest

from scrun.commands.map import Progress, rows_of


def test_rows() -> None:
    lines = {number: ["./box"] for number in (1, 2, 3, 5, 7, 8, 10, 12)}
    assert rows_of(lines, {8: 0, 1: 0, 2: 0, 3: 0, 5: 1, 7: 0, 10: 137}) == [
        ("0", "5", "1-3,7-8"), ("1", "1", "5"), ("137", "1", "10"), ("", "1", "12"),
    ]  # fmt: skip
    assert rows_of({}, {}) == []


def test_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = Progress("wo\x1brk")
    assert progress.show(9, 0, 0, 2) == 30
    now += 25
    assert progress.show(9, 1, 0, 2) == 5
    now += 6
    assert progress.show(9, 2, 1, 2) > 1000
    now += 60
    assert progress.show(9, 2, 1, 2) > 1000  # no news
    assert capfd.readouterr().err == "scrun: wo\\x1brk: 2 of 9 lines, 1 failed, 2 run\n"
    assert progress.show(9, 3, 1, 2) > 1000
    assert progress.show(9, 4, 1, 2) == 30
