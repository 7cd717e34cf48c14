"""Frames found in bytes, by both ends' readers: the same ones, however the bytes are cut."""

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.supervisor.nodes.link import Frames
from scrun.supervisor.shim.frames import (
    CALL,
    CLOSED,
    DATA,
    END,
    HEADER,
    LONGEST,
    REPLY,
    BrokenFrame,
    frame,
)
from scrun.supervisor.shim.seals import Reader

Frame = tuple[int, int, bytes]

FRAMES = st.lists(
    st.tuples(
        st.integers(CALL, CLOSED), st.integers(0, (1 << 32) - 1), st.binary(max_size=200)
    ),
    max_size=10,
)  # fmt: skip


class Taken:
    """What was found, with the parts of DATA put together."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def take(self, kind: int, stream: int, payload: memoryview) -> None:
        if kind == DATA:
            assert payload
        self.frames.append((kind, stream, bytes(payload)))


def joined(frames: list[Frame]) -> list[Frame]:
    """Without empty DATA, and with what follows DATA of the same stream joined to it."""
    found: list[Frame] = []
    for kind, stream, payload in frames:
        if kind == DATA and not payload:
            continue
        if kind == DATA and found and found[-1][:2] == (DATA, stream):
            payload = found.pop()[2] + payload
        found.append((kind, stream, payload))
    return found


def cut(content: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(content), *(place % (len(content) + 1) for place in places)})
    return [content[a:b] for a, b in itertools.pairwise(edges)]


@given(FRAMES, st.lists(st.integers(0, 10_000), max_size=20))
def test_frames_in_pieces(frames: list[Frame], places: list[int]) -> None:
    content = b"".join(frame(*each) for each in frames)
    taken = Taken()
    ours, theirs, theirs_found = Frames(taken.take), Reader(), list[Frame]()
    for part in cut(content, places):
        ours.feed(memoryview(part))
        theirs_found += theirs.feed(part)
    assert theirs_found == frames
    assert joined(taken.frames) == joined(frames)


@given(st.binary(max_size=300), st.lists(st.integers(0, 1000), max_size=10))
def test_anything(content: bytes, places: list[int]) -> None:
    """No other error, and both say the same."""
    taken = Taken()
    ours, theirs, found = Frames(taken.take), Reader(), list[Frame]()
    broken = [False, False]
    for part in cut(content, places):
        if not broken[0]:
            try:
                ours.feed(memoryview(part))
            except BrokenFrame:
                broken[0] = True
        if not broken[1]:
            try:
                found += theirs.feed(part)
            except BrokenFrame:
                broken[1] = True
    assert broken[0] == broken[1]
    if not broken[0]:
        whole = [each for each in taken.frames if each[0] != DATA]
        assert [each for each in found if each[0] != DATA] == whole


@given(FRAMES, st.binary(min_size=1, max_size=30), st.integers(0, 10_000))
def test_a_byte_that_was_changed(frames: list[Frame], other: bytes, place: int) -> None:
    content = bytearray(b"".join(frame(*each) for each in frames) or b"\0")
    at = place % len(content)
    content[at : at + 1] = other
    with contextlib.suppress(BrokenFrame):
        Frames(Taken().take).feed(memoryview(content))
    with contextlib.suppress(BrokenFrame):
        list(Reader().feed(bytes(content)))


def test_data_is_passed_on_before_it_is_whole() -> None:
    taken = Taken()
    frames = Frames(taken.take)
    frames.feed(memoryview(HEADER.pack(DATA, 3, 100) + b"first"))
    assert taken.frames == [(DATA, 3, b"first")]
    frames.feed(memoryview(b"x" * 95 + frame(END, 3)))
    assert taken.frames[1:] == [(DATA, 3, b"x" * 95), (END, 3, b"")]


@pytest.mark.parametrize("kind", [0, 10, 255])
def test_an_unknown_kind(kind: int) -> None:
    with pytest.raises(BrokenFrame):
        Frames(Taken().take).feed(memoryview(HEADER.pack(kind, 0, 0)))


def test_the_longest() -> None:
    Frames(Taken().take).feed(memoryview(HEADER.pack(REPLY, 0, LONGEST)))
    with pytest.raises(BrokenFrame):
        Frames(Taken().take).feed(memoryview(HEADER.pack(REPLY, 0, LONGEST + 1)))


def test_an_error_of_who_takes_it() -> None:
    def refuse(kind: int, stream: int, payload: memoryview) -> None:
        raise BrokenFrame("no")

    with pytest.raises(BrokenFrame, match="no"):
        Frames(refuse).feed(memoryview(frame(END, 1)))
