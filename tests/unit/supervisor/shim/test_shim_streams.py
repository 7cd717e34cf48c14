"""What a shim takes of a supervisor that sends more than it was allowed, and how it answers."""

import os
import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest

from scrun.supervisor.shim.link import Link
from scrun.supervisor.shim.loop import Loop
from scrun.supervisor.shim.streams import ShimStreams
from scrun.supervisor.wire.frames import CLOSED, CREDIT, DATA, END, WINDOW, BrokenFrame, frame

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")

NUMBER = 7


class Sent:
    """What stands for a connection.

    Attributes:
        frames: The kinds of what was sent.
    """

    is_long = False

    def __init__(self) -> None:
        self.frames: list[int] = []

    def send(self, kind: int, stream: int = 0, payload: bytes = b"") -> None:
        del payload
        assert stream == NUMBER
        self.frames.append(kind)


@pytest.fixture
def sink() -> Iterator[tuple[ShimStreams, Sent, int]]:
    """A container that does not read its input, and the end from which it could."""
    loop, sent = Loop(), Sent()
    streams = ShimStreams(loop, cast(Link, cast(Any, sent)))
    readable, writable = os.pipe()
    streams.sink(NUMBER, writable)
    yield streams, sent, readable
    streams.close_sink(NUMBER)
    os.close(readable)
    loop._epoll.close()


def test_input_beyond_the_window(sink: tuple[ShimStreams, Sent, int]) -> None:
    """What its pipe does not take waits in the shim's memory, which is the job's."""
    streams, sent, _ = sink
    streams.dispatch(DATA, NUMBER, memoryview(bytes(WINDOW)))
    assert set(sent.frames) <= {CREDIT}
    with pytest.raises(BrokenFrame, match="stream 7: more than its window"):
        streams.dispatch(DATA, NUMBER, memoryview(bytes(WINDOW)))


def test_input_after_its_end(sink: tuple[ShimStreams, Sent, int]) -> None:
    """Its end comes when all before it is written, and then nothing of that number is known."""
    streams, sent, readable = sink
    streams.dispatch(DATA, NUMBER, memoryview(b"abc"))
    streams.dispatch(END, NUMBER, memoryview(b""))
    assert os.read(readable, 10) == b"abc"
    assert os.read(readable, 10) == b""
    streams.dispatch(DATA, NUMBER, memoryview(bytes(2 * WINDOW)))
    assert CLOSED not in sent.frames


def test_a_server_that_answers_and_closes() -> None:
    """Its answer and its end go in one write: each is a message of the link's socket here."""
    loop, server = Loop(), socket.socketpair()
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    there.setblocking(False)
    link = Link(loop, here.fileno(), here.detach(), lambda *_: None, lambda: None)
    streams, ends = ShimStreams(loop, link), list[str]()
    source = streams.source(NUMBER, server[0].detach(), ended=lambda: ends.append("it"))
    source.begin()
    server[1].sendall(b"answer")
    server[1].close()
    loop.turn()
    assert there.recv(100) == frame(DATA, NUMBER, b"answer") + frame(END, NUMBER)
    assert ends == ["it"]
    link.leave()
    there.close()
    loop._epoll.close()
