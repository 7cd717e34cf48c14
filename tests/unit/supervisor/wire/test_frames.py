"""The frames between the supervisor and a shim."""

import hashlib
import hmac
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.supervisor.wire.frames import (
    CALL,
    DATA,
    END,
    EVENT,
    HEADER,
    LONGEST,
    QUIET,
    REPLY,
    BrokenFrame,
    frame,
    proof,
)
from scrun.supervisor.wire.seals import Reader
from tests.harness.frames import Frame, WholeFrames

FRAMES = st.lists(
    st.tuples(st.integers(CALL, QUIET), st.integers(0, (1 << 32) - 1), st.binary(max_size=300))
)
CUTS = st.lists(st.integers(0, 10_000), max_size=50)


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


def found(reader: WholeFrames, parts: list[bytes]) -> tuple[list[Frame], bool]:
    """What is found in them, and whether it is broken then."""
    taken: list[Frame] = []
    try:
        for part in parts:
            taken += reader.feed(part)
    except BrokenFrame:
        return taken, True
    return taken, False


@given(FRAMES, CUTS)
def test_frames_arrive_however_they_are_cut(sent: list[Frame], cuts: list[int]) -> None:
    parts = cut(b"".join(frame(*one) for one in sent), cuts)
    whole = [one for one in sent if one[0] != DATA or one[2]]
    assert found(WholeFrames(), parts) == (whole, False)
    taken, broken = found(WholeFrames(in_parts=True), parts)
    assert (joined(taken), broken) == (joined(sent), False)


@given(st.binary(max_size=300), CUTS)
def test_anything_is_frames_or_is_broken(data: bytes, cuts: list[int]) -> None:
    parts = cut(data, cuts)
    whole, broken = found(WholeFrames(), parts)
    in_parts, also = found(WholeFrames(in_parts=True), parts)
    assert broken == also
    others = [one for one in whole if one[0] != DATA]
    assert [one for one in in_parts if one[0] != DATA] == others


@given(FRAMES, st.binary(min_size=1, max_size=30), st.integers(0, 10_000))
def test_a_byte_that_was_changed(frames: list[Frame], other: bytes, place: int) -> None:
    content = bytearray(b"".join(frame(*one) for one in frames) or b"\0")
    at = place % len(content)
    content[at : at + 1] = other
    for in_parts in (False, True):
        found(WholeFrames(in_parts=in_parts), [bytes(content)])


def test_data_is_passed_on_before_it_is_whole() -> None:
    reader = WholeFrames(in_parts=True)
    assert [*reader.feed(HEADER.pack(DATA, 3, 100) + b"first")] == [(DATA, 3, b"first")]
    after = [*reader.feed(b"x" * 95 + frame(END, 3))]
    assert after == [(DATA, 3, b"x" * 95), (END, 3, b"")]


def test_the_longest() -> None:
    reader = Reader(longest=lambda kind: 5 if kind == REPLY else 3)
    [(kind, _, payload)] = reader.feed(memoryview(HEADER.pack(REPLY, 0, 5) + b"x" * 5))
    assert (kind, bytes(payload)) == (REPLY, b"x" * 5)
    with pytest.raises(BrokenFrame, match="too long"):
        list(reader.feed(memoryview(HEADER.pack(EVENT, 0, 5))))


def test_memory_is_for_what_arrives() -> None:
    """Whatever a header promises, and no longer than a frame of that length is there."""
    reader = Reader()
    content = memoryview(frame(REPLY, 0, bytes(LONGEST)))
    assert not [*reader.feed(content[:10_000])]
    assert len(reader._room) < 40_000
    [(_, _, payload)] = reader.feed(content[10_000:])
    assert len(payload) == LONGEST
    assert len(reader._room) < 40_000


@pytest.mark.parametrize(
    "header", [HEADER.pack(0, 0, 0), HEADER.pack(10, 0, 0), HEADER.pack(DATA, 1, LONGEST + 1)]
)
def test_what_is_no_frame(header: bytes) -> None:
    with pytest.raises(BrokenFrame):
        list(WholeFrames().feed(header))


def test_the_proof_is_an_hmac() -> None:
    for secret in (b"", b"k" * 32, b"k" * 64):
        for both in (b"", b"b" * 64):
            wanted = hmac.new(secret, b"shim" + both, hashlib.sha256).digest()
            assert proof(secret, b"shim", both) == wanted


def test_the_proofs_differ() -> None:
    secrets, whos, boths = (b"a" * 32, b"b" * 32), (b"shim", b"supervisor"), (b"x" * 64, b"y" * 64)
    proofs = [proof(secret, who, both) for secret in secrets for who in whos for both in boths]
    assert len(set(proofs)) == 8
    assert {len(one) for one in proofs} == {32}
