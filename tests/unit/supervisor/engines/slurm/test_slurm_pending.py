"""What squeue says of a job that waits, and how that is told."""

import time
from collections.abc import Iterator
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.model.waiting import (
    ESTIMATED_START,
    PENDING,
    RATE_LIMITED,
    Waiting,
    annotations_of,
    explain,
    in_vain_line,
    is_hopeless,
    is_news,
    is_too_much,
    waiting_line,
    waiting_of,
)
from scrun.settings.file.load import GIVE_UP
from scrun.supervisor.engines.slurm.pending import read_answers, read_waiting

NOW = 1_795_267_800.0
IN_AN_HOUR = NOW + 3600


@pytest.mark.parametrize(
    ("answer", "waiting"),
    [
        # as squeue 22.05 prints them with SLURM_TIME_FORMAT=%s
        ("PENDING|1795271400|Resources\n", Waiting("Resources", IN_AN_HOUR)),
        ("PENDING|N/A|Priority\n", Waiting("Priority")),
        ("PENDING|N/A|JobHeldUser\n", Waiting("JobHeldUser")),
        ("PENDING|1795260000|Resources\n", Waiting("Resources")),  # it should have begun
        (
            "PENDING|N/A|ReqNodeNotAvail, UnavailableNodes:node1\n",
            Waiting("ReqNodeNotAvail, UnavailableNodes:node1"),
        ),
        ("PENDING|N/A|a|b\n", Waiting("a|b")),
        ("CONFIGURING|1795267800|None\n", Waiting("Configuring")),
        # what tells nothing
        ("PENDING|N/A|None\n", None),  # the scheduler has not looked at it
        ("RUNNING|1795267800|None\n", None),
        ("CANCELLED|N/A|Resources\n", None),
        ("", None),
        ("PENDING", None),
        # a squeue that knows no formats of time
        ("PENDING|2026-11-21T14:29:18|BeginTime\n", Waiting("BeginTime")),
        ("PENDING|99999999999999999|BeginTime\n", Waiting("BeginTime")),
    ],
)
def test_answer(answer: str, waiting: Waiting | None) -> None:
    assert read_waiting(answer, NOW) == waiting


@given(st.text())
def test_any_answer(answer: str) -> None:
    read_waiting(answer, NOW)
    read_waiting("PENDING|" + answer, NOW)


# What people read


@pytest.fixture
def utc() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ("2026-11-21T14:05", ", starts about 14:05"),
        ("2026-11-21T23:59", ", starts about 23:59"),
        ("2026-11-22T00:00", ", starts about 2026-11-22 00:00"),
        ("2027-11-21T14:05", ", starts about 2027-11-21 14:05"),
        (None, ""),
    ],
)
@pytest.mark.usefixtures("utc")
def test_line(start: str | None, words: str) -> None:
    now = datetime.fromisoformat("2026-11-21T13:30+00:00").timestamp()
    moment = datetime.fromisoformat(f"{start}+00:00").timestamp() if start else None
    waiting = Waiting("Resources", moment)
    assert waiting_line("42", waiting, now=now) == f"job 42 pending: Resources{words}"
    explained = waiting_line("42", waiting, now=now, explained=True)
    assert explained == f"job 42 pending: Resources{words} (the nodes are busy)"


def test_a_job_that_slurmctld_has_not_taken() -> None:
    line = waiting_line("", Waiting(RATE_LIMITED), explained=True)
    assert line.startswith("pending: RateLimited (slurmctld limits how often its user may ask")


def test_a_reason_that_nobody_knows() -> None:
    line = waiting_line("42", Waiting("FullMoon"), explained=True)
    assert line == "job 42 pending: FullMoon"


@pytest.mark.covers("scrun a job that waits: state, list, log")
@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "higher priority"),
        ("Dependency", "depends on"),
        ("DependencyNeverSatisfied", "delete it"),
        ("BeginTime", "begin"),
        ("Licenses", "license"),
        ("JobHeldUser", "scontrol release"),
        ("JobHeldAdmin", "administrator"),
        ("PartitionTimeLimit", "SCRUN_TIMELIMIT"),
        ("PartitionNodeLimit", "SCRUN_JOB_NUM_NODES"),
        ("ReqNodeNotAvail, UnavailableNodes:node1", "down, drained or reserved"),
        ("QOSMaxCpuPerUserLimit", "its user"),
        ("QOSMaxJobsPerUserLimit", "its user"),
        ("QOSMaxCpuPerJobLimit", "ask for less"),
        ("QOSMaxWallDurationPerJobLimit", "ask for less"),
        ("QOSGrpCpuLimit", "the users of its QOS"),
        ("QOSMinCpuNotSatisfied", "ask for more"),
        ("AssocGrpCpuRunMinutesLimit", "its account"),
        ("AssocGrpMemLimit", "its account"),
        ("AssocMaxCpuPerJobLimit", "ask for less"),
        ("AssocMaxJobsLimit", "its account"),
        ("BadConstraints", "SCRUN_CONSTRAINT"),
    ],
)
def test_explanations(reason: str, words: str) -> None:
    assert words in explain(reason)


@pytest.mark.parametrize(
    ("reason", "too_much"),
    [
        ("PartitionConfig", True),
        ("QOSMaxCpuPerJobLimit", True),
        ("Resources", False),
        ("AssocGrpCpuLimit", False),
    ],
)
def test_what_may_wait_for_ever(reason: str, too_much: bool) -> None:
    assert is_too_much(reason) is too_much


@pytest.mark.parametrize(
    ("reason", "hopeless"),
    [
        # measured with 22.05 and 24.11, see docs/decisions/give-up.md
        ("PartitionConfig", True),
        ("PartitionNodeLimit", True),
        ("PartitionTimeLimit", True),
        ("DependencyNeverSatisfied", True),
        ("Job's account not known, so it can't use this partition (test allows foo)", True),
        ("QOSMaxCpuPerJobLimit", True),
        ("AssocMaxWallDurationPerJobLimit", True),
        ("QOSMinCpuNotSatisfied", True),
        # somebody opens, resumes or releases it
        ("PartitionDown", False),
        ("PartitionInactive", False),
        ("ReqNodeNotAvail, UnavailableNodes:node[1-2]", False),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority "
            "partitions",
            False,
        ),
        ("JobHeldUser", False),
        ("JobHeldAdmin", False),
        # it passes
        ("Resources", False),
        ("Priority", False),
        ("Dependency", False),
        ("QOSMaxJobsPerUserLimit", False),
        ("QOSMaxCpuPerUserLimit", False),
        ("AssocGrpCpuLimit", False),
        ("Licenses", False),
    ],
)
def test_what_no_waiting_cures(reason: str, hopeless: bool) -> None:
    assert is_hopeless(reason, GIVE_UP) is hopeless


def test_what_a_site_gives_up_on() -> None:
    assert is_hopeless("PartitionDown", ["PartitionDown"])
    assert is_hopeless("ReqNodeNotAvail, UnavailableNodes:n1", ["ReqNodeNotAvail*"])
    assert not is_hopeless("PartitionDownX", ["PartitionDown"])
    assert not is_hopeless("axb", ["a.b"])
    assert not is_hopeless("", ["a"])


def test_the_line_of_one_that_is_given_up() -> None:
    line = in_vain_line("7", Waiting("PartitionNodeLimit"), "SCRUN_JOB_NUM_NODES=5 from x")
    assert line.startswith("job 7 can never start: PartitionNodeLimit (the partition does not")
    assert line.endswith("): SCRUN_JOB_NUM_NODES=5 from x")
    assert in_vain_line("7", Waiting("FullMoon")) == "job 7 can never start: FullMoon"


def test_answers_about_several_jobs() -> None:
    text = (
        "7|PENDING|N/A|Priority\n8|RUNNING|N/A|None\nx|PENDING|N/A|Priority\n9|PENDING|N/A|a|b\n"
    )
    assert read_answers(text, NOW) == {"7": Waiting("Priority"), "9": Waiting("a|b")}


def test_annotations() -> None:
    assert annotations_of(None) == {}
    assert annotations_of(Waiting("Priority")) == {PENDING: "Priority"}
    assert annotations_of(Waiting("Resources", 1795268178.0)) == {
        PENDING: "Resources",
        ESTIMATED_START: "2026-11-21T13:36:18Z",
    }


@pytest.mark.parametrize(
    ("told", "new", "news"),
    [
        (None, Waiting("Resources"), True),
        (Waiting("Priority"), Waiting("Resources"), True),
        (Waiting("Resources"), Waiting("Resources"), False),
        (Waiting("Resources"), Waiting("Resources", IN_AN_HOUR), True),
        (Waiting("Resources", IN_AN_HOUR), Waiting("Resources"), True),
        (Waiting("Resources", IN_AN_HOUR), Waiting("Resources", IN_AN_HOUR + 59), False),
        (Waiting("Resources", IN_AN_HOUR), Waiting("Resources", IN_AN_HOUR + 300), False),
        (Waiting("Resources", IN_AN_HOUR), Waiting("Resources", IN_AN_HOUR + 600), True),
        (Waiting("Resources", IN_AN_HOUR), Waiting("Resources", NOW + 120), True),
        (Waiting("Resources", NOW + 120), Waiting("Resources", NOW + 150), False),
    ],
)
def test_what_is_news(told: Waiting | None, new: Waiting, news: bool) -> None:
    assert is_news(told, new, NOW) is news


@pytest.mark.parametrize(
    "waiting", [None, Waiting("Priority"), Waiting("Resources", 1795268178.0)]
)
def test_a_successor_reads_from_the_record_what_a_job_waits_for(waiting: Waiting | None) -> None:
    assert waiting_of(annotations_of(waiting)) == waiting
