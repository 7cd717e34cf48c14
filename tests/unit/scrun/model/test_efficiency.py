"""What containers have used of what they had."""

from typing import Any

import msgspec
import pytest

from scrun.model.efficiency import figures, total
from scrun.model.usage import Usage

pytestmark = pytest.mark.covers("scrun report")

MIB, GIB = 1 << 20, 1 << 30
USED = Usage(
    user=370.0, system=2.0, memory=1200 * MIB, memory_of="cgroup", wall=93.0, cpus=8,
    limit=64 * GIB,
)  # fmt: skip


def row(**changed: Any) -> dict[str, Any]:
    return figures(msgspec.structs.replace(USED, **changed), "exited")


def timed(waited: float | None, usage: Usage) -> dict[str, Any]:
    return {"waited_seconds": waited, "elapsed_seconds": usage.wall, **figures(usage, "")}


def test_all_is_known() -> None:
    told = row()
    assert (told["cpu_percent"], told["memory_percent"]) == (50.0, 1.8)
    assert (told["cpu_seconds"], told["enough_cpus"], told["enough_memory"]) == (372, 4, 2 * GIB)


@pytest.mark.parametrize(
    ("changed", "enough"),
    [
        ({"user": 93.5, "system": 0.0}, 1),  # one loop, and a clock that is not exact
        ({"user": 0.0, "system": 0.0}, 1),
        ({"user": 120.0}, 2),
        ({"user": None}, None),
        ({"wall": None}, None),
        ({"wall": 0.0}, None),
        ({"wall": 1e-320}, None),
    ],
)
def test_processors_that_are_enough(changed: dict[str, Any], enough: int | None) -> None:
    assert row(**changed)["enough_cpus"] == enough


@pytest.mark.parametrize(
    ("changed", "enough", "percent"),
    [
        ({"memory": 100 * MIB}, 128 * MIB, 0.2),
        ({"memory": 0}, 64 * MIB, 0.0),
        ({"memory": 60 * GIB}, 64 * GIB, 93.8),  # never more than it had
        ({"memory": 40 * GIB, "memory_of": "step"}, 50 * GIB, 62.5),
        ({"memory": 60 * GIB, "limit": None}, 75 * GIB, None),
        ({"memory_of": "process"}, None, None),  # other processes may have had more
        ({"memory": None, "memory_of": None}, None, None),
    ],
)
def test_memory_that_is_enough(
    changed: dict[str, Any], enough: int | None, percent: float | None
) -> None:
    told = row(**changed)
    assert (told["enough_memory"], told["memory_percent"]) == (enough, percent)


def test_what_ran_out_of_memory_had_not_enough() -> None:
    assert figures(USED, "out-of-memory")["enough_memory"] is None


def test_what_is_not_known_is_not_zero() -> None:
    """The one that nobody knows lowers no average."""
    whole = msgspec.structs.replace(USED, user=744.0, system=0.0, memory=64 * GIB)
    sums = total([timed(2.0, whole), timed(4.0, Usage()), timed(None, Usage())])
    assert (sums["cpu_percent"], sums["memory_percent"], sums["waited_seconds"]) == (100, 100, 3)
    assert (sums["containers"], sums["cpu_percent_of"], sums["memory_percent_of"]) == (3, 1, 1)
    assert sums["cpu_seconds_had"] == 744
    assert {*total([]).values()} == {0, None}


def test_long_ones_count_more() -> None:
    idle = msgspec.structs.replace(USED, user=0.0, system=0.0, wall=279.0)
    busy = msgspec.structs.replace(USED, user=744.0, system=0.0)
    assert total([timed(0.0, idle), timed(0.0, busy)])["cpu_percent"] == 25
