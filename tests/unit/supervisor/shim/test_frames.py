"""The frames between the supervisor and a shim."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.supervisor.shim.frames import (
    CALL,
    DATA,
    HEADER,
    LINE,
    LONGEST,
    BrokenFrame,
    frame,
    proof,
)
from scrun.supervisor.shim.seals import Reader

frames = st.lists(
    st.tuples(st.integers(CALL, LINE), st.integers(0, (1 << 32) - 1), st.binary(max_size=300))
)


@given(frames, st.lists(st.integers(1, 50), max_size=50))
def test_frames_arrive_however_they_are_cut(
    sent: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    data = b"".join(frame(*one) for one in sent)
    reader = Reader()
    found: list[tuple[int, int, bytes]] = []
    for cut in cuts:
        found += reader.feed(data[:cut])
        data = data[cut:]
    assert [*found, *reader.feed(data)] == sent
    assert [*reader.feed(b"")] == []


@given(st.binary(max_size=100))
def test_anything_is_frames_or_is_broken(data: bytes) -> None:
    try:
        found = [*Reader().feed(data)]
    except BrokenFrame:
        return
    assert b"".join(frame(*one) for one in found) == data[: sum(len(p) + 9 for *_, p in found)]


@pytest.mark.parametrize(
    "header", [HEADER.pack(0, 0, 0), HEADER.pack(10, 0, 0), HEADER.pack(DATA, 1, LONGEST + 1)]
)
def test_what_is_no_frame(header: bytes) -> None:
    with pytest.raises(BrokenFrame):
        list(Reader().feed(header))


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
