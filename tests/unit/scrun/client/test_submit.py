"""What the client does with the supervisor's reply to `create`."""

import socket

import pytest

from scrun.cli.parse import parse
from scrun.client import progress, submit
from scrun.protocol.wire import LIVE


def test_an_interrupt_that_comes_with_a_line_clears_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sees the line may press Ctrl-C before its `write` has returned."""
    written = []

    def write(fd: int, line: bytes) -> None:
        written.append(line)
        if line == b"pending":
            raise KeyboardInterrupt

    monkeypatch.setattr(progress, "is_live", lambda: True)
    monkeypatch.setattr(progress, "write_if_possible", write)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(LIVE + b"pending\0")
        with pytest.raises(KeyboardInterrupt):
            submit._read_reply(ours, parse(["run", "one"]))
    assert written == [b"pending", b"\r\x1b[K"]
