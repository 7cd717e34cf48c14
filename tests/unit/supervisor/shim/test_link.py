"""The shim's end of a connection: what it sends in silence, and what it does not wait for."""

import os
import socket
from collections.abc import Iterator

import pytest

from scrun.supervisor.shim.link import Link
from scrun.supervisor.shim.loop import Loop
from scrun.supervisor.wire.frames import DATA, QUIET
from scrun.supervisor.wire.seals import NO_REST, sealed
from tests.harness.frames import WholeFrames, framed

SECRET, BOTH = b"s" * 32, b"b" * 64
SHORT = 0.02


class End:
    """A shim's link, and the other end of its socket."""

    def __init__(self) -> None:
        self.loop = Loop()
        ours, self.socket = socket.socketpair()
        seals = sealed(SECRET, BOTH, True)
        self.taken: list[bytes] = []
        self.ended: list[str] = []
        fd = ours.detach()
        self.link = Link(
            self.loop, fd, fd, lambda _kind, _stream, data: self.taken.append(bytes(data)),
            lambda: self.ended.append(self.link.broken), seals=(*seals, SHORT),
        )  # fmt: skip
        self.link.listen()
        theirs, self.seal = sealed(SECRET, BOTH, True)
        self.reader = WholeFrames(theirs)

    def is_idle(self) -> bool:
        """Whether it waits for no time any more."""
        return self.loop._next() < 0

    def frame(self, payload: bytes) -> bytes:
        return framed(self.seal, DATA, 1, payload)


@pytest.fixture
def end() -> Iterator[End]:
    made = End()
    yield made
    made.link.leave()
    made.socket.close()
    made.loop._epoll.close()


def test_silence_is_shown_once(end: End) -> None:
    for payload in (b"one", b"two"):
        end.link.send(DATA, 1, payload)
    end.loop.run(end.is_idle)
    frames = list(end.reader.feed(end.socket.recv(1000)))
    assert frames == [(DATA, 1, b"one"), (DATA, 1, b"two"), (QUIET, 0, b"")]
    end.link.send(DATA, 1, b"three")
    end.loop.run(end.is_idle)
    frames = list(end.reader.feed(end.socket.recv(1000)))
    assert frames == [(DATA, 1, b"three"), (QUIET, 0, b"")]


@pytest.mark.parametrize("size", [5, 40, 60])
def test_the_rest_of_a_frame_does_not_come(end: End, size: int) -> None:
    end.socket.send(end.frame(b"whole") + end.frame(b"x" * 100)[:size])
    end.loop.run(lambda: bool(end.ended))
    assert (end.taken, end.ended) == ([b"whole"], [NO_REST])
    assert end.link.is_nonsense
    assert end.is_idle()


def test_the_rest_of_a_frame_comes(end: End) -> None:
    content = end.frame(b"x" * 100)
    end.socket.send(content[:50])
    end.loop.turn()
    assert not end.is_idle()
    end.socket.send(content[50:])
    end.loop.run(lambda: bool(end.taken))
    end.loop.run(end.is_idle)
    assert not end.ended


def test_who_is_left_waits_for_nothing(end: End) -> None:
    end.link.send(DATA, 1, b"x")
    end.socket.send(end.frame(b"x")[:1])
    end.loop.turn()
    end.link.leave()
    assert end.is_idle()


def test_silence_of_the_other_end_is_not_passed_on(end: End) -> None:
    end.socket.send(end.seal.head(QUIET, 0, 0) + end.frame(b"x"))
    end.loop.run(lambda: bool(end.taken))
    assert end.taken == [b"x"]


def test_what_was_right_is_taken_before_what_is_wrong(end: End) -> None:
    right, wrong = end.frame(b"right"), bytearray(end.frame(b"wrong"))
    wrong[-20] ^= 1
    end.socket.send(right + wrong)
    end.loop.run(lambda: bool(end.ended))
    assert end.taken == [b"right"]
    assert "frame 2 was changed" in end.ended[0]
    assert os.get_blocking(end.socket.fileno())
