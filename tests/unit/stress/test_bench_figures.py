import pytest

from tests.stress.bench.figures import Goal, Times, goals_table, growth, table


def test_times_are_told_by_their_median() -> None:
    times = Times()
    for seconds in (0.010, 0.500, 0.020):
        times.add("a", seconds)
    times.add("b", 0.001)
    assert times.median("a") == 0.020
    assert times.median("a", "b") == pytest.approx(0.021)
    assert "| a | 20.0 | 10.0 | 500.0 | 3 |" in times.table()


def test_what_is_done_in_turns_is_compared_by_turns() -> None:
    times = Times()
    for first, second in ((0.010, 0.011), (0.500, 0.502), (0.020, 0.080)):
        times.add("a", first)
        times.add("b", second)
    assert times.more("b", "a") == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("value", "at_least", "met"),
    [
        (1.5, False, True),
        (1.504, False, True),  # as it is printed
        (1.51, False, False),
        (1.5, True, True),
        (1.49, True, False),
    ],
)
def test_a_goal_is_met_as_it_is_printed(value: float, at_least: bool, met: bool) -> None:
    goal = Goal("what", "that", value, 1.5, at_least)
    assert goal.met is met
    assert ("**no**" in goals_table([goal])) is not met


@pytest.mark.parametrize(("power", "expected"), [(0, 0), (1, 1), (2, 2)])
def test_growth_is_an_exponent(power: int, expected: int) -> None:
    points = [(float(size), 3.0 * size**power) for size in (100, 200, 500, 1000)]
    assert growth(points) == pytest.approx(expected)


def test_a_table_is_markdown() -> None:
    assert table(["a", "b"], [[1, "x"]]) == "| a | b |\n| --- | --- |\n| 1 | x |\n"
