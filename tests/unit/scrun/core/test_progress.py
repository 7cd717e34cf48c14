"""How far something is, at a terminal and where nobody looks."""

import pytest

from scrun.core.progress import Rarely, with_bar


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "x: 1 MiB"), (0, "  0% [....................] x: 1 MiB"),
        (0.5, " 50% [##########..........] x: 1 MiB"),
        (1.7, "100% [####################] x: 1 MiB"),
        (-1, "  0% [....................] x: 1 MiB"),
    ],
)  # fmt: skip
def test_a_line_for_a_terminal(share: float | None, text: str) -> None:
    assert with_bar("x: 1 MiB", share) == text


def test_one_line_in_ten_seconds() -> None:
    now, said = 0.0, list[str]()
    rarely = Rarely(said.append, lambda: now)
    for moment in range(35):
        now = float(moment)
        rarely(str(moment), moment / 35)
        rarely("")
    assert said == ["10", "20", "30"]


def test_what_is_quick_has_no_line() -> None:
    said: list[str] = []
    Rarely(said.append, lambda: 5.0)("all of it", 1.0)
    assert said == []
