"""The keys that leave an attached container alone, and what goes over the connection."""

import pytest

from scrun.commands.attach import without_keys
from scrun.protocol.attach import DATA, frame

P, Q = b"\x10", b"\x11"


@pytest.mark.parametrize(
    ("held", "typed", "plain", "kept", "leaving"),
    [
        (b"", b"", b"", b"", False),
        (b"", b"abc", b"abc", b"", False),
        (b"", P, b"", P, False),
        (b"", b"ab" + P, b"ab", P, False),
        (b"", P + b"ab", P + b"ab", b"", False),
        (b"", P + Q, b"", b"", True),
        (b"", b"ab" + P + Q + b"cd", b"ab", b"", True),
        (b"", Q, Q, b"", False),
        (b"", Q + P, Q, P, False),
        (b"", P + P, P, P, False),
        (b"", P + P + Q, P, b"", True),
        (P, b"", b"", P, False),
        (P, Q, b"", b"", True),
        (P, Q + b"ab", b"", b"", True),
        (P, b"a", P + b"a", b"", False),
        (P, P, P, P, False),
        (P, P + Q, P, b"", True),
        (P, b"a" + P, P + b"a", P, False),
        (P, b"a" + Q, P + b"a" + Q, b"", False),
    ],
)
def test_keys(held: bytes, typed: bytes, plain: bytes, kept: bytes, leaving: bool) -> None:
    assert without_keys(held, typed) == (plain, kept, leaving)


@pytest.mark.parametrize(
    "typed", [b"ls\n", P + b"x" + P + P + b"y", b"a" + Q + P + b"b" + Q, bytes(range(256))]
)
def test_nothing_typed_is_lost_however_it_comes(typed: bytes) -> None:
    if P + Q in typed:
        typed = typed.replace(P + Q, P)
    sent, held = b"", b""
    for number in range(len(typed)):
        plain, held, leaving = without_keys(held, typed[number : number + 1])
        assert not leaving
        sent += plain
    assert sent + held == typed


@pytest.mark.parametrize(
    ("content", "packed"),
    [
        (b"", b"d\0\0\0\0"),
        (b"ab", b"d\0\0\0\2ab"),
        (b"d\0\0\0\1" * 1000, b"d\0\0\x13\x88" + b"d\0\0\0\1" * 1000),
    ],
)
def test_frame(content: bytes, packed: bytes) -> None:
    assert frame(DATA, content) == packed
