"""The intervals of `events`."""

import pytest

from scrun.commands.events import seconds
from scrun.core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, 7), ("5", 5), ("0.5", 0.5), (".5", 0.5), ("5s", 5), ("100ms", 0.1), ("1m30s", 90),
        ("1.5h", 5400), ("250us", 0.00025),
    ],
)  # fmt: skip
def test_an_interval(text: str | None, expected: float) -> None:
    assert seconds(text, 7) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text",
    ["", "0", "0s", "-1", "s", "5x", "5 s", "1m30", "ms", "1e3", "nan", "99999999h", "\u0661"],
)
def test_no_interval(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time such as"):
        seconds(text, 7)
