"""Sockets of the engine's, which a container in a job mounts."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from scrun.core.errors import EngineError
from scrun.supervisor.containers.engine_sockets import EngineSockets, connected
from scrun.supervisor.staging.survey import look
from tests.harness import users


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A socket whose path is longer than a socket's name may be; it answers one client."""
    directory = tmp_path / ("long" * 30)
    directory.mkdir()
    here = os.open(directory, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{here}/docker.sock")
        listener.listen()
        os.close(here)

        def answer() -> None:
            with suppress(OSError), listener.accept()[0] as client:
                client.sendall(b"it is me")

        answering = threading.Thread(target=answer)
        answering.start()
        yield directory / "docker.sock"
        listener.shutdown(socket.SHUT_RDWR)
        answering.join()


async def test_it_is_reached(path: Path) -> None:
    with await EngineSockets({"/var/run/docker.sock": str(path)}).connect(
        "/var/run/docker.sock", 0
    ) as client:
        assert await client.recv(64) == b"it is me"
    assert look(str(path), []).mine


@pytest.mark.covers("security connect to other sockets here than those of engines that it mounts")
async def test_a_node_asks_for_another_one(path: Path) -> None:
    with pytest.raises(EngineError, match="does not mount a socket at"):
        await EngineSockets({"/var/run/docker.sock": str(path)}).connect(str(path), 0)


@pytest.mark.by_root
@pytest.mark.covers("security put a socket where an engine's was")
def test_it_is_another_user_s(path: Path) -> None:
    other = users.ordinary()
    os.chown(path, other.uid, other.gid)
    assert not look(str(path), []).mine
    with pytest.raises(EngineError, match="is not a socket of this user's any more"):
        connected(str(path))


@pytest.mark.covers("security put a socket where an engine's was")
def test_it_has_become_a_link_to_another_one(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "docker.sock"
    link.symlink_to(path)
    with pytest.raises(EngineError, match="is not a socket of this user's any more"):
        connected(str(link))


@pytest.mark.by_root
def test_another_user_listens(tmp_path: Path) -> None:
    """At a socket that belongs to this one, as it did when it was bound."""
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        os.seteuid(users.ordinary().uid)
        try:
            listener.listen()
        finally:
            os.seteuid(0)
        with pytest.raises(EngineError, match="another user listens at"):
            connected(str(path))
