"""What squeue says of a job that is over."""

import pytest

from scrun.states import TAKEN
from supervisor.engines.slurm.fate import read_fate


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("TIMEOUT TimeLimit\n", "time-limit"),
        ("COMPLETING TimeLimit\n", "time-limit"),
        ("NODE_FAIL NodeDown\n", "node-failure"),
        ("PREEMPTED None\n", "preempted"),
        ("CANCELLED None\n", None),
        ("COMPLETING None\n", None),
        ("", None),
        ("anything else", None),
    ],
)
def test_fate(answer: str, reason: str | None) -> None:
    ending = read_fate(answer, "7")
    if reason is None:
        assert ending is None
    else:
        assert ending is not None
        assert (ending.reason, ending.status) == (reason, TAKEN[reason])
        assert "job 7" in ending.text
