"""Which waiting job may serve a container."""

from math import inf

import pytest

from scrun.supervisor.engines.slurm.held_allocation import Needs, fits, needs_of, seconds_of_limit

HOUR = 3600.0


def needs(*options: str, time: str = "", **variables: str) -> Needs:
    wanted = {"SCRUN_TIMELIMIT": time} if time else {}
    found = needs_of([*options, *([f"--time={time}"] if time else [])], variables, wanted)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("asked", "had"),
    [
        (needs("--nodes=1"), needs("--nodes=2")),
        (needs("--nodes=1", "--partition=a"), needs("--nodes=1")),
        (needs("--nodes=1"), needs("--nodes=1", "--partition=a")),
        (needs("--mem=1", "--mem=2"), needs("--mem=2", "--mem=1")),  # the last one counts
        (needs(time="5"), needs()),
        (needs(), needs(time="5")),
        (needs(time="5"), needs(time="60")),
        (needs(KRB5CCNAME="FILE:/a"), needs(KRB5CCNAME="FILE:/b")),
        (needs(SPANK_COLOUR="red"), needs()),
    ],
)
def test_another_request_needs_another_job(asked: Needs, had: Needs) -> None:
    assert not fits(asked, had, inf, 0)
    assert fits(had, had, inf, 0)


def test_what_slurm_does_not_read_makes_no_difference() -> None:
    assert needs("-N1", HOME="/a", PATH="/b") == needs("-N1", HOME="/c")


@pytest.mark.parametrize(
    ("time", "limit", "used", "enough"),
    [
        ("", HOUR, 0, True),
        ("", HOUR, 360, True),  # nine tenths of what Slurm gives to who asks for nothing
        ("", HOUR, 361, False),
        ("", inf, 1e9, True),
        ("", None, 0, False),
        ("60", HOUR, 0, True),
        ("60", HOUR, 1, False),  # never less than it asks for
        ("1:30", 120.0, 30, True),  # Slurm counts in minutes
        ("1:30", 120.0, 31, False),
        ("60", inf, 1e9, True),
        ("60", None, 0, False),
        ("UNLIMITED", inf, 9, True),
        ("UNLIMITED", HOUR, 0, False),
        ("soon", HOUR, 0, False),
    ],
)
def test_the_time_that_is_left(time: str, limit: float | None, used: float, enough: bool) -> None:
    asked = needs("-N1", time=time)
    assert fits(asked, asked, limit, used) == enough


def test_one_that_depends_on_other_jobs_waits_for_those() -> None:
    assert needs_of(["--dependency=singleton"], {}, {"SCRUN_DEPENDENCY": "singleton"}) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 300), ("5:30", 330), ("1:05:30", 3930), ("1-0", 86400), ("2-03", 183600),
        ("1-00:30", 88200), ("1-00:00:01", 86401), ("30:00", 1800), ("0", inf), ("-1", inf),
        ("UNLIMITED", inf), ("infinite", inf), ("", None), ("NOT_SET", None), ("INVALID", None),
        ("1:2:3:4", None), ("+60", None), ("5 ", None),
    ],
)  # fmt: skip
def test_time_limits(text: str, seconds: float | None) -> None:
    assert seconds_of_limit(text) == seconds
