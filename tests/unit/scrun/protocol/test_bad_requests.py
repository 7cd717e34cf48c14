"""Requests, and what anchors, viewers and workers say, that ended more than themselves."""

import pytest

from scrun.anchor.foreground import parse_status
from scrun.core.errors import UsageError
from scrun.protocol.anchor import LOST
from scrun.protocol.attach import DATA, SIGNAL, frame, take_frames
from scrun.supervisor.children.processes import SYSTEM_PATH
from scrun.supervisor.containers.anchors import read_signals
from scrun.supervisor.contracts.create_request import read_command_line
from scrun.supervisor.scripts.process import Hangup, parse_frame

CALL = [b"4711", b"22", b"/b", b"2", b"create", b"c1", b"A=b"]


@pytest.mark.parametrize(
    "changed",
    [
        {0: b"0"}, {0: b"-5"}, {0: b"9" * 30}, {1: b"-7"}, {1: b"1000"}, {1: b"7" * 30},
        {2: b"relative"}, {2: b""}, {3: b"-1"}, {3: b"9"}, {4: b"kill"}, {4: b"list"},
    ],
    ids=str,
)  # fmt: skip
def test_a_call_that_makes_no_sense(changed: dict[int, bytes]) -> None:
    with pytest.raises(UsageError):
        read_command_line([changed.get(i, field) for i, field in enumerate(CALL)], "create")


@pytest.mark.parametrize(
    "frame_",
    [
        [b""], [b"log"], [b"log", b"info"], [b"log", b"a", b"b", b"c"], [b"failed", b"x"],
        [b"done"], [b"done", b"a", b"b", b"c"], [b"command"], [b"command", b"a", b"b"],
        [b"nonsense"],
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_frame_of_a_worker(frame_: list[bytes]) -> None:
    with pytest.raises(Hangup):
        parse_frame(frame_)


@pytest.mark.parametrize(
    "frame_",
    [[b"loaded"], [b"loaded", b"a", b"b"], [b"stop"], [b"log", b"", b""], [b"done", b"", b""]],
)
def test_frames_of_a_worker(frame_: list[bytes]) -> None:
    assert parse_frame(frame_) == (frame_[0], frame_[1:])


def test_an_anchor_that_says_anything() -> None:
    signals, rest = read_signals(b"TERM\nNONSENSE\n\xff\n\n" + b"x" * 1_000_000)
    assert [number.name for number in signals] == ["SIGTERM"]
    assert len(rest) <= 64


def test_frames_without_content() -> None:
    assert take_frames(frame(SIGNAL, b"") + frame(DATA, b"x")) == (
        [(SIGNAL, b""), (DATA, b"x")],
        b"",
    )


@pytest.mark.parametrize("said", [b"x\n", b"-1\n", b"1\n2\n", b"9999\n", b"\n", b"\xff\n"])
def test_a_status_that_is_none(said: bytes) -> None:
    assert parse_status(said) == LOST
    assert [parse_status(b"%d\n" % status) for status in (0, 7, 255)] == [0, 7, 255]


@pytest.mark.parametrize("path", [b"", b"/opt/bin"])
def test_a_caller_without_a_path(path: bytes) -> None:
    """`env -i`, and containerd: runc found no newuidmap."""
    given = [b"PATH=" + path] if path else []
    found = read_command_line([*CALL, *given], "create").child_env.environment["PATH"]
    assert found == (path.decode() or SYSTEM_PATH)
