"""Who is at the other end of a socket, and how long that is waited for."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scrun.protocol import wire
from tests.harness import users
from tests.harness.users import User

LISTEN = """
import os, socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
sock.listen(9)
print("ready", flush=True)
sys.stdin.read()
"""
CONNECT = """
import sys
sys.path.insert(0, sys.argv[1])
from scrun.protocol import wire
try:
    wire.connect_supervisor(sys.argv[2], "socket").close()
    print("connected")
except PermissionError as error:
    print(error.strerror)
"""


@contextmanager
def served(path: Path, user: User) -> Iterator[None]:
    """Have a user listen at a socket, and take nobody."""
    path.parent.chmod(0o777)
    for parent in path.parents:  # pytest's directories are root's alone
        if parent.is_relative_to("/tmp/pytest-of-root"):
            parent.chmod(parent.stat().st_mode | 0o011)
    with subprocess.Popen(
        [*user.prefix, sys.executable, "-I", "-c", LISTEN, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
        process.terminate()


def answer(path: Path, *prefix: str) -> str:
    project = str(Path(wire.__file__).parents[2])
    command = [*prefix, sys.executable, "-I", "-c", CONNECT, project, str(path.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.covers("security answer in its place, or at a console socket")
@pytest.mark.parametrize("theirs", [True, False])
def test_who_may_answer(tmp_path: Path, theirs: bool) -> None:
    user, another = users.ordinary(), users.other()
    path = tmp_path / "socket"
    with served(path, another if theirs else user):
        mine = "connected\n" if not theirs else f"is served by another user (uid {another.uid})\n"
        assert answer(path, *user.prefix) == mine
        assert answer(path) == "connected\n"  # root asks


@pytest.mark.covers("security answer in its place, or at a console socket")
def test_root_of_a_user_namespace_is_not_root(tmp_path: Path) -> None:
    """As rootless podman is; it would hand its environment to anybody."""
    user, another = users.ordinary(), users.other()
    path = tmp_path / "socket"
    with served(path, another):
        said = answer(path, *user.prefix, "unshare", "--user", "--map-root-user")
    assert said == "is served by another user (uid 65534)\n"


def test_a_full_queue_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen(0)
        first = wire.connect(str(tmp_path), "socket", patience=1)
        begun = time.monotonic()
        with pytest.raises(OSError, match=f"{tmp_path}/socket"):
            wire.connect(str(tmp_path), "socket", patience=1)
        assert 0.9 < time.monotonic() - begun < 5
        first.close()


def test_errors_name_the_socket(tmp_path: Path) -> None:
    long = tmp_path / ("d" * 150)
    for directory in (tmp_path, long):
        with pytest.raises(OSError, match=f"{directory}/socket"):
            wire.connect(str(directory), "socket")
    assert len(os.listdir("/proc/self/fd")) < 100


MAY_CALL = """
import socket, sys, trio
from scrun.supervisor.daemon.requests import may_call
async def main():
    print(may_call(trio.socket.from_stdlib_socket(socket.socketpair()[0])))
trio.run(main)
"""


@pytest.mark.covers("security answer in its place, or at a console socket")
@pytest.mark.parametrize(
    ("prefix", "may"),
    [
        (("setpriv", "--reuid=65534", "--clear-groups"), "True"),  # nobody, as themselves
        # there everybody is nobody
        (("setpriv", "--reuid=21999", "--clear-groups", "unshare", "--user"), "False"),
        (("unshare", "--user", "--map-root-user"), "True"),
    ],
)
def test_nobody_in_a_user_namespace_may_be_anybody(prefix: tuple[str, ...], may: str) -> None:
    command = [*prefix, "--", sys.executable, "-c", MAY_CALL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd="/")
    assert done.stdout == f"{may}\n"


def test_nobody_s_supervisor_in_a_user_namespace_is_not_asked(tmp_path: Path) -> None:
    user, another = users.ordinary(), users.other()
    path = tmp_path / "socket"
    with served(path, another):
        said = answer(path, *user.prefix, "unshare", "--user")
    assert said == "is served by another user (uid 65534)\n"
