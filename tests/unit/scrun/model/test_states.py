"""The container's state machine: which steps exist, what callers see, what a signal means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.core.errors import LONGEST
from scrun.model.states import (
    FATAL,
    TAKEN,
    Phase,
    SignalAction,
    answer_to_signal,
    exited,
    killed,
    may_become,
    taken,
)

CREATING, CREATED, WAITING, STARTING, RUNNING, STOPPING, STOPPED = Phase
STEPS = {
    (CREATING, CREATED),
    (CREATING, STOPPING),
    (CREATED, WAITING),
    (CREATED, STARTING),
    (CREATED, STOPPING),
    (WAITING, STARTING),
    (WAITING, STOPPING),
    (STARTING, RUNNING),
    (STARTING, STOPPING),
    (RUNNING, STOPPING),
    (STOPPING, STOPPED),
}
HUP, INT, QUIT, KILL, USR1, USR2, PIPE, TERM = 1, 2, 3, 9, 10, 12, 13, 15
CHLD, CONT, STOP, WINCH, RTMIN, RTMAX = 17, 18, 19, 28, 34, 64
MILD = (USR1, USR2, PIPE, CHLD, CONT, STOP, WINCH, RTMIN, RTMAX)


@pytest.mark.parametrize("following", Phase)
@pytest.mark.parametrize("phase", Phase)
def test_steps(phase: Phase, following: Phase) -> None:
    assert may_become(phase, following) == ((phase, following) in STEPS)


@given(st.lists(st.sampled_from(Phase), max_size=40))
def test_it_goes_one_way(wanted: list[Phase]) -> None:
    order = list(Phase)
    phase = CREATING
    for following in wanted:
        if may_become(phase, following):
            assert order.index(following) > order.index(phase)
            phase = following


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_leads_to_the_end(phase: Phase) -> None:
    for following in (STOPPING, STOPPED):
        if may_become(phase, following):
            phase = following
    assert phase is STOPPED


@pytest.mark.covers("scrun(1) SYNOPSIS: state")
@pytest.mark.parametrize(
    ("phase", "status"),
    [
        (CREATING, "creating"),
        (CREATED, "created"),
        (WAITING, "running"),
        (STARTING, "running"),
        (RUNNING, "running"),
        (STOPPING, "running"),
        (STOPPED, "stopped"),
    ],
)
def test_callers_see_the_four_states_of_the_specification(phase: Phase, status: str) -> None:
    assert phase.status == status


@pytest.mark.parametrize("signal", [HUP, INT, QUIT, KILL, TERM, *MILD])
@pytest.mark.parametrize(
    ("phase", "to_fatal", "to_others"),
    [
        (CREATING, SignalAction.END, SignalAction.REFUSE),
        (CREATED, SignalAction.END, SignalAction.IGNORE),
        (WAITING, SignalAction.END, SignalAction.IGNORE),
        (STARTING, SignalAction.DELIVER, SignalAction.DELIVER),
        (RUNNING, SignalAction.DELIVER, SignalAction.DELIVER),
        (STOPPING, SignalAction.IGNORE, SignalAction.IGNORE),
        (STOPPED, SignalAction.TOO_LATE, SignalAction.TOO_LATE),
    ],
)
def test_answer_to_signal(
    phase: Phase, to_fatal: SignalAction, to_others: SignalAction, signal: int
) -> None:
    expected = to_others if signal in MILD else to_fatal
    assert answer_to_signal(phase, signal) is expected


@pytest.mark.parametrize("phase", Phase)
def test_the_signal_that_stops_it_is_fatal_before_there_is_a_process(phase: Phase) -> None:
    assert answer_to_signal(phase, WINCH, stop_signal=WINCH) is answer_to_signal(phase, TERM)
    assert answer_to_signal(phase, USR1, stop_signal=WINCH) is answer_to_signal(phase, USR1)
    assert answer_to_signal(phase, 0, stop_signal=0) is not SignalAction.END


def test_signals_that_ask_for_an_end() -> None:
    assert {HUP, INT, QUIT, KILL, TERM} == FATAL


@given(st.sampled_from(Phase), st.integers(0, 64))
def test_every_signal_has_an_answer(phase: Phase, signal: int) -> None:
    answer = answer_to_signal(phase, signal)
    assert (answer is SignalAction.DELIVER) == (phase in (STARTING, RUNNING))


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("node-failure", 120),
        ("preempted", 121),
        ("cancelled", 122),
        ("time-limit", 124),
        ("scrun-failure", 125),
        ("out-of-memory", 137),
    ],
)
def test_taken(reason: str, status: int) -> None:
    ending = taken(reason, "why")
    assert (ending.status, ending.reason, ending.text) == (status, reason, "why")


def test_no_way_of_losing_a_job_looks_like_an_end_of_its_own() -> None:
    assert len(set(TAKEN.values())) == len(TAKEN)
    # but for the want of memory: there is a process that the kernel has killed
    lost = {status for reason, status in TAKEN.items() if reason != "out-of-memory"}
    assert not lost & {0, 1, 126, 127, *range(128, 256)}


def test_taken_for_no_known_reason() -> None:
    with pytest.raises(KeyError):
        taken("boredom", "")


def test_killed() -> None:
    assert (killed(KILL).status, killed(KILL).reason, killed(KILL).text) == (137, "killed", "")
    assert killed(TERM, "by whom").text == "by whom"
    assert killed(TERM).status == 143


def test_exited() -> None:
    assert [exited(status).status for status in (0, 7, 255)] == [0, 7, 255]
    assert (exited(0).reason, exited(0).text) == ("exited", "")


def test_what_an_ending_says_is_bounded() -> None:
    """It is in the record, and what a runtime has said may be long."""
    assert len(taken("cancelled", "x" * 1_000_000).text) <= LONGEST
