"""What the container of a queued job says on its standard error, line by line."""

import pytest

from scrun.model.waiting import RATE_LIMITED, Waiting
from scrun.supervisor.containers.notices import Notices

RESOURCES = Waiting("Resources")
PRIORITY = Waiting("Priority")
BUSY = "job 42 pending: Resources (the nodes are busy)"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def notices(said: list[str]) -> Notices:
    return Notices(said.append)


def test_nothing_is_said_before_the_start(notices: Notices, said: list[str]) -> None:
    notices.queued("42")
    notices.waits(RESOURCES)
    notices.waits(PRIORITY)
    assert said == []
    assert notices.reason.startswith("job 42 pending: Priority (")


def test_the_start_says_what_is_known(notices: Notices, said: list[str]) -> None:
    notices.queued("42")
    notices.waits(RESOURCES)
    notices.started()
    assert said == [BUSY]


def test_a_start_before_the_reason_is_known(notices: Notices, said: list[str]) -> None:
    notices.queued("42")
    notices.started()
    notices.waits(RESOURCES)
    assert said == ["job 42 is queued", BUSY]


def test_a_start_before_slurm_has_answered(notices: Notices, said: list[str]) -> None:
    notices.started()
    assert said == ["its job is not in the queue yet"]


def test_slurmctld_takes_no_request_yet(notices: Notices, said: list[str]) -> None:
    notices.waits(Waiting(RATE_LIMITED))
    notices.started()
    notices.waits(None)
    notices.waits(Waiting(RATE_LIMITED))
    notices.waits(None)
    assert [line.partition(" (")[0] for line in said] == ["pending: RateLimited"]
    assert notices.reason == "its job is not in the queue yet"


def test_srun_is_slowed_down_in_a_job_that_has_its_nodes(
    notices: Notices, said: list[str]
) -> None:
    notices.queued("42")
    notices.granted("node1")
    notices.started()
    notices.waits(Waiting(RATE_LIMITED))
    assert said[-1].startswith("job 42 pending: RateLimited (slurmctld limits how often")


def test_a_start_while_the_bundle_is_staged(notices: Notices, said: list[str]) -> None:
    notices.queued("42")
    notices.granted("node1")
    notices.started()
    assert said == ["job 42: its bundle is being staged"]


def test_changes_and_the_end_of_the_waiting_are_said(notices: Notices, said: list[str]) -> None:
    notices.queued("42")
    notices.waits(RESOURCES)
    notices.started()
    notices.waits(PRIORITY)
    notices.waits(None)
    notices.granted("node[1-2]")
    assert said[0] == BUSY
    assert said[1].startswith("job 42 pending: Priority (")
    assert said[2:] == ["job 42 has been allocated node[1-2]"]


def test_an_estimate_is_said_once_and_not_whenever_it_moves(
    notices: Notices, said: list[str]
) -> None:
    notices.queued("42")
    notices.waits(RESOURCES)
    notices.started()
    for start in (4e9, 4.1e9, 4.2e9, None):
        notices.waits(Waiting("Resources", start))
    assert len(said) == 2
    assert "starts about" in said[1]


def test_one_that_never_waited_says_nothing(notices: Notices, said: list[str]) -> None:
    notices.begin()
    notices.queued("42")
    notices.granted("node1")
    assert said == []


def test_a_run_in_the_foreground_says_it_as_soon_as_it_is_known(
    notices: Notices, said: list[str]
) -> None:
    notices.begin()
    notices.queued("42")
    assert said == []
    notices.waits(RESOURCES)
    notices.granted("node1")
    assert said == [BUSY, "job 42 has been allocated node1"]


def test_nothing_is_said_after_the_end(notices: Notices, said: list[str]) -> None:
    notices.queued("42")
    notices.waits(RESOURCES)
    notices.started()
    notices.close()
    notices.waits(PRIORITY)
    notices.granted("node1")
    assert said == [BUSY]


@pytest.mark.parametrize(
    ("started", "granted", "lines"),
    [
        (True, False, ["job 42 has been allocated node1"]),
        (True, True, []),
        (False, False, []),
        (False, True, []),
    ],
)
def test_a_successor_says_nothing_again(
    notices: Notices, said: list[str], lines: list[str], *, started: bool, granted: bool
) -> None:
    notices.queued("42")
    notices.go_on(None if granted else RESOURCES, started=started, granted=granted)
    notices.waits(None if granted else RESOURCES)
    notices.granted("node1")
    assert said == lines


def test_a_start_after_the_adoption_says_what_is_known(notices: Notices, said: list[str]) -> None:
    notices.queued("42")
    notices.go_on(RESOURCES, started=False, granted=False)
    notices.started()
    notices.granted("node1")
    assert said == [BUSY, "job 42 has been allocated node1"]
