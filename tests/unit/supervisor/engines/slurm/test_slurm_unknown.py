"""Whose jobs are those of a salloc that was killed."""

import pytest

from scrun.supervisor.engines.slurm.job_ending import submitted_by

ANSWER = """
7                             1118                          1700000100
8                             1118                          1690000000
9                             1119                          1700000100
10                            1118                          1700000103
11                            1118                          N/A
12                            1118
"""


@pytest.mark.parametrize(
    ("session", "since", "jobs"),
    [
        (1118, 1700000100.9, ["7", "10"]),
        (1118, 1700000104.0, ["10"]),
        (1119, 1700000100.0, ["9"]),
        (1120, 0.0, []),
    ],
)
def test_by_its_session_and_its_time(session: int, since: float, jobs: list[str]) -> None:
    assert submitted_by(ANSWER, session, since) == jobs
