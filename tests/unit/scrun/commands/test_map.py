"""What `scrun map` says at its end."""

from scrun.commands.map import rows_of


def test_rows() -> None:
    lines = {number: ["./box"] for number in (1, 2, 3, 5, 7, 8, 10, 12)}
    assert rows_of(lines, {8: 0, 1: 0, 2: 0, 3: 0, 5: 1, 7: 0, 10: 137}) == [
        ("0", "5", "1-3,7-8"), ("1", "1", "5"), ("137", "1", "10"), ("", "1", "12"),
    ]  # fmt: skip
    assert rows_of({}, {}) == []
