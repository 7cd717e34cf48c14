"""scrun install docker-api: the unit of systemd's, and what is left alone."""

import os
import socket
from pathlib import Path

import pytest

from scrun.core.errors import SettingsError
from scrun.install import service


def test_where_the_socket_is() -> None:
    assert service.socket_path({}, 0) == "/run/podman/podman.sock"
    there = service.socket_path({"XDG_RUNTIME_DIR": "/run/user/7/"}, 7)
    assert there == "/run/user/7/podman/podman.sock"
    with pytest.raises(SettingsError, match="XDG_RUNTIME_DIR: not set"):
        service.socket_path({"XDG_RUNTIME_DIR": "here"}, 7)


def test_a_user_s_manager(tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert not service.has_manager(environment, 7)
    (tmp_path / "systemd").mkdir()
    (tmp_path / "systemd" / "private").touch()
    assert service.has_manager(environment, 7)


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that notes its arguments; return the file of what else it does."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program, does = tmp_path / "systemctl", tmp_path / "does"
    program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/called\n. {does}\n')
    program.chmod(0o755)
    does.touch()
    return does


def test_the_unit(systemctl: Path) -> None:
    service.by_unit("enable", 7)
    service.by_unit("disable", 0)
    assert systemctl.with_name("called").read_text().splitlines() == [
        "--user enable --now podman.socket",
        "disable --now podman.socket",
    ]
    systemctl.write_text("echo Failed. >&2; echo There is no such unit. >&2; exit 1")
    with pytest.raises(SettingsError, match=r"^systemctl --user enable .*: There is no such unit"):
        service.by_unit("enable", 7)


def test_what_else_listens_is_left_alone(tmp_path: Path) -> None:
    """This process does; it is not podman."""
    path = str(tmp_path / "podman.sock")
    assert not service.stop(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        assert not service.stop(path)
        assert service.answers(path, timeout=0.1) == "timed out"
    assert service.answers(path) == "Connection refused"


@pytest.mark.parametrize(
    ("words", "serves"),
    [
        (["/usr/bin/podman", "system", "service", "--time=0", "unix:///x"], True),
        (["podman", "system", "reset"], False),
        (["/lib/systemd/systemd", "--user"], False),
        ([], False),
    ],
)
def test_which_process_is_ended(words: list[str], *, serves: bool) -> None:
    assert service._is_service(words) is serves
