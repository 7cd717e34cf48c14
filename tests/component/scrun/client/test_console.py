"""Who gets a terminal, over `--console-socket`."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.client.anchored import Console
from scrun.core.rights import receive_fds
from scrun.protocol import wire

pytestmark = [
    pytest.mark.covers("security answer in its place, or at a console socket"),
    pytest.mark.usefixtures("no_descriptor_stays"),
]


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "console"))
        sock.listen(1)
        yield sock


def received(listener: socket.socket) -> list[int]:
    connection, _ = listener.accept()
    with connection:
        return receive_fds(connection, 4096)[1]


def test_the_engine_gets_it(listener: socket.socket) -> None:
    console = Console(listener.getsockname())
    os.close(console.stdio[0])
    console.hand_over()
    [master] = received(listener)
    assert os.isatty(master)
    os.close(master)


@pytest.mark.parametrize("uid", [0, 4711])
def test_who_listens(listener: socket.socket, monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    """Root may have it. Somebody else, who has put a socket in that place, gets nothing."""
    console = Console(listener.getsockname())
    os.close(console.stdio[0])
    monkeypatch.setattr(wire, "peer_uid", lambda sock: uid)
    monkeypatch.setattr("posix.geteuid", lambda: 1234)
    if uid:
        with pytest.raises(PermissionError, match="--console-socket"):
            console.hand_over()
        assert received(listener) == []
        os.close(console._master)
    else:
        console.hand_over()
        [master] = received(listener)
        os.close(master)


def test_what_is_no_socket(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="is not a socket"):
        Console(str(tmp_path / "file"))


@pytest.mark.by_root
def test_a_socket_of_somebody_else(tmp_path: Path, listener: socket.socket) -> None:
    os.chown(tmp_path / "console", 4711, -1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        Console(listener.getsockname())
