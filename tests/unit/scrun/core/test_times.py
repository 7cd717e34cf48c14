"""Times as people type them."""

import pytest

from scrun.core.times import moment

NOW = 1_000_000.25


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("10m", NOW - 600), ("1h30m", NOW - 5400), ("0.5s", NOW - 0.5), ("0", 0),
        ("1777629600", 1777629600), ("1777629600.25", 1777629600.25),
        ("2026-05-01T10:00:00Z", 1777629600), ("2026-05-01T12:00:00+02:00", 1777629600),
        ("2026-05-01T10:00:00.5+00:00", 1777629600.5), ("2026-05-01 10:00Z", 1777629600),
    ],
)  # fmt: skip
def test_a_moment(text: str, then: float) -> None:
    assert moment(text, NOW) == then


def test_without_a_zone_it_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Etc/GMT-3")
    time.tzset()
    try:
        assert moment("2026-05-01T13:00:00", NOW) == 1777629600
        assert moment("2026-05-01", NOW) == 1777629600 - 13 * 3600
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text",
    ["", "-5", "1e9", "nan", "10 m", "m", "12:00", "2026-02-30", "0001-01-01T00:00",
     "\u0661", "2026-05-01T", "9" * 13],
)  # fmt: skip
def test_no_moment(text: str) -> None:
    assert moment(text, NOW) is None
