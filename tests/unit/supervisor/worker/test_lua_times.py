"""Slurm's time spans, as `slurm.time_str2mins` reads them."""

import pytest

from scrun.supervisor.worker.main import NOT_A_TIME, UNLIMITED, minutes

SPANS = {
    "1:30": 2,
    "0:29": 1,
    "90": 90,
    "1-0": 1440,
    "1-2": 1560,
    "1-2:3": 1563,
    "1-2:3:4": 1564,
    "2:3:4": 124,
    "00:00:01": 1,
    "0": 0,
    "1-": 1440,
    "1:60": 2,
    "0:00": 0,
    "2:00:00": 120,
    "0-0:0:1": 1,
    "999999999": 999999999,
}


@pytest.mark.parametrize(("text", "expected"), SPANS.items())
def test_spans(text: str, expected: int) -> None:
    assert minutes(text) == expected


@pytest.mark.parametrize("text", ["-1", "INFINITE", "UNLIMITED", "infinite", "Unlimited"])
def test_without_an_end(text: str) -> None:
    assert minutes(text) == UNLIMITED == -1


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "-", "-5", "-0", "x", "1x", "x1", ":", "1:", ":1", "1:2:", "1:2:3:4", "--1",
        "1--2", "1-2:", "1-2:3:4:5", "1.5", "+1", " 1", "1 ", "1\n", "1 2", "٣", "0x10", "1e3",
        "nan", "9999999999", "1-9999999999", "99999999999999999999", "INFINITE ",
    ],
)  # fmt: skip
def test_what_is_no_time(text: str) -> None:
    assert minutes(text) == NOT_A_TIME == -2
