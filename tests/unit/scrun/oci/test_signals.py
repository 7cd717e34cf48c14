"""Signals by name and by number."""

import contextlib
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.core.errors import UsageError
from scrun.oci.signals import STOP_SIGNAL, its_end, parse_signal, signal_name, stop_signal


@pytest.mark.covers("scrun(1) SYNOPSIS: kill")
@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("TERM", 15),
        ("SIGTERM", 15),
        ("sigterm", 15),
        ("Term", 15),
        ("15", 15),
        ("09", 9),
        ("0", 0),  # kill(2): whether there is something to signal
        ("1", 1),
        ("32", 32),
        ("64", 64),
        ("USR1", 10),
        ("IOT", 6),
        ("CLD", 17),
        ("POLL", 29),
        ("RTMIN", 34),
        ("SIGRTMIN+3", 37),
        ("rtmin+30", 64),
        ("RTMIN+0", 34),
        ("RTMAX", 64),
        ("RTMAX-14", 50),
        ("sigrtmax-30", 34),
    ],
)
def test_known(text: str, number: int) -> None:
    assert parse_signal(text) == number


NO_NUMBERS = ["", "00" * 2, "65", "-9", "+9", " 9", "9 ", "1_0", "9.0", "9" * 1000, "\u0669"]
NO_NAMES = ["SIG", "SIGSIGTERM", "NONSENSE", "TERM ", "\u017fIGTERM", "TERM+1", "SIGNAL"]
NO_SIGNALS = ["SIG_BLOCK", "_BLOCK", "_DFL", "__doc__"]  # but names in the module
NO_REAL_TIME = ["RTMIN+31", "RTMIN-1", "RTMAX+1", "RTMAX-31", "RTMIN+", "RTMIN+x", "RTMIN+-1"]


@pytest.mark.parametrize("text", [*NO_NUMBERS, *NO_NAMES, *NO_SIGNALS, *NO_REAL_TIME])
def test_unknown(text: str) -> None:
    with pytest.raises(UsageError, match="unknown signal") as caught:
        parse_signal(text)
    assert repr(text) in str(caught.value)


@given(st.text())
def test_nothing_but_a_usage_error_comes_out(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert 0 <= parse_signal(text) <= 64


@pytest.mark.parametrize(
    ("number", "name"),
    [
        *((1, "HUP"), (6, "ABRT"), (9, "KILL"), (15, "TERM"), (17, "CHLD"), (29, "IO")),
        *((34, "RTMIN"), (37, "RTMIN+3"), (64, "RTMAX")),
        *((0, "0"), (32, "32"), (99, "99")),
    ],
)
def test_names(number: int, name: str) -> None:
    assert signal_name(number) == name


def test_every_name_leads_back_to_its_number() -> None:
    for number in range(1, 65):
        assert parse_signal(signal_name(number)) == number


def test_the_names_are_those_of_the_standard_library() -> None:
    for member in signal.Signals:
        assert parse_signal(member.name) == member.value


@pytest.mark.parametrize(
    ("text", "number"), [("28", 28), ("SIGWINCH", 28), ("", 0), ("0", 0), ("nonsense", 0)]
)
def test_the_signal_by_which_an_engine_stops(text: str, number: int) -> None:
    assert stop_signal({STOP_SIGNAL: text}) == number
    assert stop_signal({}) == 0


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (0, "ended with 0"),
        (3, "ended with 3"),
        (-2, "was killed by signal 2 (SIGINT)"),
        (-9, "was killed by signal 9 (SIGKILL): is there no memory left?"),
        (-11, "was killed by signal 11 (SIGSEGV): it has crashed; try again, and tell who "
              "installed it"),
        (-35, "was killed by signal 35 (SIGRTMIN+1)"),
    ],
)  # fmt: skip
def test_how_a_program_ended(status: int, said: str) -> None:
    assert its_end(status) == said
