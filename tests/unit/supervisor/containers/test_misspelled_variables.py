"""Variables that are much like one that scrun reads."""

import pytest

from scrun.supervisor.contracts.create_request import misspelled


@pytest.mark.covers("scrun requests: variables of the caller")
def test_what_was_meant() -> None:
    meant = {
        "SCRUN_NODELIST": "SCRUN_JOB_NODELIST",  # the option's name
        "SCRUN_NODLIST": "SCRUN_JOB_NODELIST",
        "SCRUN_TIME": "SCRUN_TIMELIMIT",
        "SCRUN_PARTITON": "SCRUN_PARTITION",
        "SCRUN_DEBG": "SCRUN_DEBUG",
        "SCRUN_CONFG": "SCRUN_CONFIG",
        "SCRUN_LOG_FIL": "SCRUN_LOG_FILE",
    }
    assert dict(misspelled(meant)) == meant


@pytest.mark.parametrize(
    "name",
    [
        "SCRUN_JOB_NODELIST",
        "SCRUN_ROOTFS_PATH",  # what scripts get
        "SCRUN_OPTION_PARTITON",
        "SCRUN_ANNOTATION_PARTITON",
        "SCRUN_TEST_USER",
        "SCRUN_OF_SITE",
        "SLURM_NODLIST",
        "PATH",
    ],
)
def test_what_is_right_or_somebody_elses(name: str) -> None:
    assert misspelled([name]) == []
