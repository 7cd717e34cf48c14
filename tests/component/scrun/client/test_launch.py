"""Supervisors as `create` starts them."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scrun.client.launch import launch
from scrun.core.errors import SupervisorLost
from scrun.core.paths import LOOKED
from scrun.protocol import wire
from tests import CHECKOUT
from tests.harness.processes import peer, processes, signal_quietly
from tests.harness.wait import wait_until, wait_while

NAME = "@user-x"
KILLED_AFTER_STARTING_ONE = """
import os, sys
from scrun.client.launch import launch
spawn = os.posix_spawn
def spawn_and_die(*arguments, **more):
    spawn(*arguments, **more)
    os._exit(9)
os.posix_spawn = spawn_and_die
launch(*sys.argv[1:])
"""


def supervisors(root: Path) -> list[int]:
    found = processes()
    return [each.pid for each in found if each.is_supervisor and str(root) in each.argv]


def end_supervisors(root: Path) -> None:
    """End those of a root directory."""
    for pid in supervisors(root):
        signal_quietly(pid, signal.SIGTERM)
    wait_while("the supervisor", lambda: supervisors(root))


def test_one_that_does_not_start_leaves_nothing(tmp_path: Path) -> None:
    """A lock that stays would be one more file for each name that was tried."""
    (tmp_path / "root" / "@container-x").mkdir(parents=True)
    with pytest.raises(SupervisorLost, match="does not start"):
        launch(str(tmp_path / "root"), "@container-x")
    assert os.listdir(tmp_path / "root") == ["@container-x"]


def test_one_that_hangs_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up, and those that wait for it as well; the one after them has a new one."""
    root = tmp_path / "root"
    spawn = os.posix_spawn

    def spawn_and_stop(*arguments: Any, **more: Any) -> int:
        pid = spawn(*arguments, **more)
        os.kill(pid, signal.SIGSTOP)
        return pid

    waits = "import sys; from scrun.client import launch as it; it._PATIENCE = 1; "
    waits += "it.launch(*sys.argv[1:])"
    other_one = [sys.executable, "-c", waits, str(root), NAME]
    with monkeypatch.context() as patch:
        patch.setattr("scrun.client.launch._PATIENCE", 2.0)
        patch.setattr(os, "posix_spawn", spawn_and_stop)
        with subprocess.Popen(
            ["sh", "-c", 'sleep 0.5; exec "$@"', "sh", *other_one],
            cwd=CHECKOUT,
            stderr=subprocess.PIPE,
        ) as other:
            with pytest.raises(SupervisorLost, match="no listener after 2 s"):
                launch(str(root), NAME)
            assert other.stderr is not None
            assert b"no listener after 1 s" in other.stderr.read()
    try:
        launch(str(root), NAME).close()
    finally:
        end_supervisors(root)
    assert {*os.listdir(root)} <= {LOOKED}  # it may have come as far as that


def test_one_that_is_killed_while_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one is started; if that is killed each time, somebody hears of it."""
    root = tmp_path / "root"
    spawn = os.posix_spawn
    kills = [2]

    def spawn_and_kill(*arguments: Any, **more: Any) -> int:
        pid = spawn(*arguments, **more)
        if kills[0]:
            kills[0] -= 1
            os.kill(pid, signal.SIGKILL)
        return pid

    monkeypatch.setattr(os, "posix_spawn", spawn_and_kill)
    try:
        launch(str(root), NAME).close()
    finally:
        end_supervisors(root)
    kills[0] = 100
    with pytest.raises(SupervisorLost, match="without giving a reason"):
        launch(str(root), NAME)
    assert {*os.listdir(root)} <= {LOOKED}


@pytest.mark.parametrize("_", range(5))
def test_one_that_is_ended_at_once(tmp_path: Path, _: int) -> None:
    """From its first word on, SIGTERM leaves neither its socket's name nor the lock."""
    root = tmp_path / "root"
    connection = launch(str(root), NAME)
    os.kill(peer(connection), signal.SIGTERM)
    connection.close()
    wait_while("the supervisor", lambda: supervisors(root))
    assert {*os.listdir(root)} <= {LOOKED}  # it may have come as far as that


def test_who_has_started_it_is_killed(tmp_path: Path) -> None:
    """The next one waits for the same supervisor, and does not start another beside it."""
    root = tmp_path / "root"
    program = [sys.executable, "-c", KILLED_AFTER_STARTING_ONE, str(root), NAME]
    assert subprocess.run(program, cwd=CHECKOUT, check=False).returncode == 9
    try:
        launch(str(root), NAME).close()
        assert len(supervisors(root)) == 1
        wire.connect_supervisor(str(root), NAME).close()
    finally:
        end_supervisors(root)
    assert {*os.listdir(root)} <= {LOOKED}  # it may have come as far as that


BESIDE = """
import os, sys
from scrun.client.launch import launch_beside
os.set_inheritable(int(sys.argv[3]), True)
launch_beside(sys.argv[1], sys.argv[2], to_tidy=bool(sys.argv[4:]))
"""


@pytest.mark.parametrize("to_tidy", [True, False])
def test_one_that_is_started_beside_keeps_nobody_waiting(tmp_path: Path, to_tidy: bool) -> None:
    """Neither the caller's end, nor that of what it has open, waits for the supervisor."""
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    mine, given = os.pipe()
    with (root / f"{NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        words = [sys.executable, "-c", BESIDE, str(root), NAME, str(given), *["1"] * to_tidy]
        process = subprocess.Popen(
            words, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[given]
        )
        os.close(given)
        assert process.communicate(timeout=30) == (b"", b"")
        assert process.returncode == 0
        assert os.read(mine, 1) == b""
        os.close(mine)
        [beside] = [each for each in processes() if str(root) in each.argv]
        assert os.getsid(beside.pid) == beside.pid
        assert {os.readlink(f"/proc/{beside.pid}/fd/{fd}") for fd in range(3)} == {"/dev/null"}
        assert not supervisors(root)
    wait_until("a supervisor", lambda: supervisors(root), 30)
    wait_while("who has started it", lambda: os.path.exists(f"/proc/{beside.pid}"))
    end_supervisors(root)
