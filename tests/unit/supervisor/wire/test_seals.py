"""Sealed frames: those that come are those that were sent, in their order, or none."""

import itertools
import sys
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.supervisor.wire import frames as frames_module
from scrun.supervisor.wire import processor, seals
from scrun.supervisor.wire.frames import CALL, CLOSED, DATA, BrokenFrame, hash_function, proof
from scrun.supervisor.wire.gmac import Gmac
from scrun.supervisor.wire.seals import Plain, Sealed, sealed
from tests.harness.frames import Frame, WholeFrames, framed

FRAMES = st.lists(
    st.tuples(
        st.integers(CALL, CLOSED), st.integers(0, (1 << 32) - 1), st.binary(max_size=200)
    ).filter(lambda frame: frame[0] != DATA or frame[2]),  # an empty one may be left out
    min_size=1, max_size=8,
)  # fmt: skip
SECRET, BOTH = b"s" * 32, b"b" * 64


def ends(
    *, streams: bool = True, secret: bytes = SECRET, both: bytes = BOTH, gmac: bool = False
) -> list[Sealed]:
    """The seals of the shim's frames, at both ends."""
    found = [sealed(secret, both, streams)[0] for _ in range(2)]
    if gmac:
        for seal in found:
            seal.use_gmac()
            seal._in_large = seals._MUCH
    return found


def units(seal: Plain, frames: list[Frame]) -> list[bytes]:
    return [framed(seal, *frame) for frame in frames]


def found(
    seal: Plain, content: bytes, cuts: list[int], *, in_parts: bool
) -> tuple[list[Frame], bool]:
    """What an end takes of it, and whether it fails then."""
    taken: list[Frame] = []
    reader = WholeFrames(seal, in_parts=in_parts)
    edges = sorted({0, len(content), *(cut % (len(content) + 1) for cut in cuts)})
    try:
        for a, b in itertools.pairwise(edges):
            taken.extend(reader.feed(content[a:b]))
    except BrokenFrame:
        return taken, True
    return taken, False


@given(FRAMES, st.lists(st.integers(0, 10_000), max_size=10), st.booleans(), st.booleans())
def test_what_is_sent_comes(
    frames: list[Frame], cuts: list[int], streams: bool, in_parts: bool
) -> None:
    sends, takes = ends(streams=streams)
    taken, broken = found(takes, b"".join(units(sends, frames)), cuts, in_parts=in_parts)
    assert not broken
    if streams or not in_parts:
        assert taken == frames
    else:  # DATA may come in parts
        assert b"".join(data for *_, data in taken) == b"".join(data for *_, data in frames)


@given(
    FRAMES, st.integers(0, 1 << 20), st.lists(st.integers(0, 10_000), max_size=5), st.booleans()
)
def test_a_bit_that_is_changed(
    frames: list[Frame], bit: int, cuts: list[int], in_parts: bool
) -> None:
    """Nothing of that frame is passed on, nor of those behind it; a length is not believed."""
    sends, takes = ends()
    sent = units(sends, frames)
    content = bytearray(b"".join(sent))
    bit %= 8 * len(content)
    content[bit // 8] ^= 1 << bit % 8
    edges = list(itertools.accumulate(map(len, sent)))
    at = next(n for n, edge in enumerate(edges) if bit // 8 < edge)
    assert found(takes, bytes(content), cuts, in_parts=in_parts) == (frames[:at], True)


LARGE = 1 << 14


@given(
    st.lists(st.integers(LARGE - 2, LARGE + 2), min_size=1, max_size=4), st.integers(0, 1 << 20)
)
def test_large_frames_by_gmac(sizes: list[int], bit: int) -> None:
    """They come as they were sent, and a bit that is changed is noticed, before and after."""
    frames = [(DATA, number, bytes([number]) * size) for number, size in enumerate(sizes)]
    sends, takes = ends(gmac=True)
    sent = units(sends, frames)
    assert found(takes, b"".join(sent), [], in_parts=True) == (frames, False)
    bit %= 8 * len(sent[-1])
    changed = bytearray(sent[-1])
    changed[bit // 8] ^= 1 << bit % 8
    content = b"".join([*sent[:-1], bytes(changed)])
    assert found(ends(gmac=True)[1], content, [], in_parts=True) == (frames[:-1], True)


def test_the_tag_of_a_large_frame() -> None:
    """It is what the contract says: by a key of its own, and the frame's number."""
    seal, _ = ends(gmac=True)
    payload = bytes(LARGE)
    for number in (1, 2):
        seal.head(DATA, 0, len(payload))
        key = blake2b(
            key=proof(SECRET, b"shim's frames", BOTH), digest_size=16, person=b"gmac"
        ).digest()
        assert seal.tail(DATA, payload) == Gmac(key).tag(number, payload)


@pytest.mark.parametrize("of", [bytes, bytearray, memoryview])
@pytest.mark.parametrize(
    ("key", "nonce", "content", "tag"),
    [  # of gcmEncryptExtIV128.rsp, NIST's CAVP; and test case 1 of the GCM specification
        (
            "77be63708971c4e240d1cb79e8d77feb",
            "e0e00f19fed7ba0136a797f3",
            "7a43ec1d9c0a5a78a0b16533a6213cab",
            "209fcc8d3675ed938e9c7166709dd946",
        ),
        ("00" * 16, "00" * 12, "", "58e2fccefa7e3061367f1d57a4e7455a"),
    ],
)
def test_gmac(
    key: str, nonce: str, content: str, tag: str, of: Callable[[bytes], bytes | memoryview]
) -> None:
    """It is the standard's, from whatever memory."""
    made = Gmac(bytes.fromhex(key))
    for _ in range(2):
        found = made.tag(int(nonce, 16), of(bytes.fromhex(content)))
        assert found.hex() == tag


def test_much_in_large_frames() -> None:
    """OpenSSL is loaded for what follows 4 MiB: no container waits for it that says little."""
    sends, takes = ends(gmac=True)
    sends._in_large = takes._in_large = 0
    frames = [(DATA, 1, bytes(1 << 18))] * 18
    sent = units(sends, frames[:16])
    assert sends._gmac is None
    sent += units(sends, frames[16:])
    assert sends._gmac is not None
    assert found(takes, b"".join(sent), [], in_parts=True) == (frames, False)


@pytest.mark.parametrize("large", [True, False])
def test_ends_that_do_not_agree(*, large: bool) -> None:
    """A large frame counts only by the function that both know of; for others there is one."""
    frame = (DATA, 1, bytes(LARGE - (not large)))
    content = b"".join(units(ends(gmac=True)[0], [frame]))
    taken = found(ends()[1], content, [], in_parts=True)
    assert taken == (([], True) if large else ([frame], False))


@pytest.mark.parametrize(
    ("cpuinfo", "has"),
    [
        ("processor\t: 0\nflags\t\t: fpu pclmulqdq aes avx2\n", True),
        ("processor\t: 0\nflags\t\t: fpu pclmulqdq\nbugs\t: aes\n", False),
        ("processor\t: 0\nFeatures\t: fp asimd aes pmull sha2\n", True),
        ("processor\t: 0\nFeatures\t: fp asimd aes sha2\n", False),
        (None, False),
    ],
)
def test_a_processor(
    cpuinfo: str | None, has: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        path.write_text(cpuinfo)
    monkeypatch.setattr(processor, "_CPUINFO", str(path))
    assert processor.has_gmac() is has
    (tmp_path / "_hashlib.py").write_text("")  # a Python that has OpenSSL within it
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert not processor.has_gmac()
    monkeypatch.setattr(sys, "path", [])  # one without OpenSSL
    assert not processor.has_gmac()


@given(FRAMES, st.data(), st.booleans())
def test_frames_that_are_left_out_or_moved(
    frames: list[Frame], data: st.DataObject, in_parts: bool
) -> None:
    sends, takes = ends()
    sent = units(sends, frames)
    order = data.draw(st.lists(st.integers(0, len(sent) - 1), max_size=len(sent) + 2))
    right = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], enumerate(order))))
    content = b"".join(sent[at] for at in order)
    assert found(takes, content, [], in_parts=in_parts) == (frames[:right], right < len(order))


@pytest.mark.parametrize("in_parts", [True, False])
@pytest.mark.parametrize("other", ["secret", "connection", "direction", "kind", "plain"])
def test_frames_of_another(other: str, *, in_parts: bool) -> None:
    frame = (DATA, 1, b"x")
    sends = {
        "secret": ends(secret=b"t" * 32)[0],
        "connection": ends(both=b"c" * 64)[0],
        "direction": sealed(SECRET, BOTH, True)[1],
        "kind": ends(streams=False)[0],  # without the tag, which another frame does not replace
        "plain": Plain(),
    }[other]
    content = b"".join(units(sends, [frame] * 3))
    assert found(ends()[1], content, [], in_parts=in_parts) == ([], True)


@pytest.mark.parametrize("in_parts", [True, False])
def test_nothing_is_passed_on_before_it_is_whole(*, in_parts: bool) -> None:
    sends, takes = ends()
    content = b"".join(units(sends, [(DATA, 1, bytes(1 << 18))]))
    assert found(takes, content[:-1], [], in_parts=in_parts) == ([], False)


@pytest.mark.parametrize("kind", [0, 10])
def test_what_is_no_frame_although_it_has_a_tag(kind: int) -> None:
    sends, takes = ends()
    with pytest.raises(BrokenFrame, match="not a frame"):
        takes.opened(sends.head(kind, 0, 0))


def test_a_function_that_may_not_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a node that has FIPS 140 algorithms only."""

    class Refuses:
        def __getattr__(self, _: str) -> object:
            def refuse(*_: object, **__: object) -> None:
                raise ValueError("disabled for FIPS")

            return refuse

    for module in ("_blake2", "hashlib"):
        monkeypatch.setitem(sys.modules, module, Refuses())
    with pytest.raises(OSError, match="has no blake2b"):
        hash_function("blake2b", "_blake2")
    assert frames_module.sum_of(b"") != ""
