"""What squeue says of a job that is over."""

import pwd

import pytest

from scrun.model.states import TAKEN
from scrun.supervisor.engines.slurm.job_ending import parse_sacct, parse_squeue

NOW = 1795289232.5


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        # state, time of a preemption, reason, time of the end, as squeue 22.05 prints them
        ("TIMEOUT|None|TimeLimit|1795289230\n", "time-limit"),
        ("COMPLETING|None|TimeLimit|1795289230\n", "time-limit"),
        ("NODE_FAIL|None|NodeDown|1795289230\n", "node-failure"),
        ("PREEMPTED|2026-11-21T13:27:03|None|1795289230\n", "preempted"),
        ("COMPLETING|2026-11-21T13:27:03|None|1795289230\n", "preempted"),
        ("OUT_OF_MEMORY|None|None|1795289230\n", "out-of-memory"),
        # over, but not noticed yet
        ("RUNNING|N/A|None|1795289230\n", "time-limit"),
        ("RUNNING|N/A|None|1795289233\n", None),
        ("RUNNING|N/A|None|Unknown\n", None),
        ("COMPLETING|N/A|None|1795289230\n", None),
        ("CANCELLED|None|None|1795289230\n", None),
        ("CANCELLED|2026-11-21T13:27:03|None|1795289230\n", None),  # in its grace time
        ("COMPLETING|None|None|1795289230\n", None),
        # the reason may be an administrator's text
        ("CANCELLED|N/A|no TIMEOUT, no PREEMPTED: NodeDown|1795289230\n", None),
        ("CANCELLED|N/A|a|TimeLimit|b|1795289230\n", None),
        ("COMPLETING\n", None),
        ("COMPLETING|\n", None),
        ("", None),
        ("anything else", None),
    ],
)
def test_fate(answer: str, reason: str | None) -> None:
    ending = parse_squeue(answer, "7", NOW)
    if reason is None:
        assert ending is None
    else:
        assert ending is not None
        assert (ending.reason, ending.status) == (reason, TAKEN[reason])
        assert "job 7" in ending.text


@pytest.mark.covers("scrun exit statuses: out of memory, preempted, cancelled and by whom")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        # as sacct 22.05 prints them
        ("CANCELLED by 0\n", f"job 7 was cancelled by {pwd.getpwuid(0).pw_name}"),
        ("CANCELLED by 4123456789\n", "job 7 was cancelled by user 4123456789"),
        ("PREEMPTED\n", "job 7 ended: another job preempted it"),
        ("TIMEOUT\n", "job 7 ended: its time limit was reached"),
    ],
)
def test_accounting(answer: str, words: str) -> None:
    ending = parse_sacct(answer, "7", NOW)
    assert ending is not None
    assert ending.text == words
    assert ("cancelled" in words) == (ending.reason == "cancelled")


@pytest.mark.parametrize("answer", ["", "CANCELLED\n", "COMPLETED\n", "RUNNING\n"])
def test_accounting_that_does_not_tell(answer: str) -> None:
    assert parse_sacct(answer, "7", NOW) is None
