"""Supervisors as `create` starts them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scrun import wire
from scrun.commands.launch import launch
from scrun.errors import SupervisorLost
from tests.harness.processes import processes, signal_quietly
from tests.harness.wait import wait_while

NAME = "@user-x"
KILLED_AFTER_STARTING_ONE = """
import os, sys
from scrun.commands.launch import launch
spawn = os.posix_spawn
def spawn_and_die(*arguments, **more):
    spawn(*arguments, **more)
    os._exit(9)
os.posix_spawn = spawn_and_die
launch(*sys.argv[1:])
"""


def supervisors(root: Path) -> list[int]:
    """Those of a root directory."""
    found = processes()
    return [each.pid for each in found if each.is_supervisor and str(root) in each.argv]


def test_one_that_does_not_start_leaves_nothing(tmp_path: Path) -> None:
    """A lock that stays would be one more file for each name that was tried."""
    (tmp_path / "root" / "@container-x").mkdir(parents=True)
    with pytest.raises(SupervisorLost, match="does not start"):
        launch(str(tmp_path / "root"), "@container-x")
    assert os.listdir(tmp_path / "root") == ["@container-x"]


def test_who_has_started_it_is_killed(tmp_path: Path) -> None:
    """The next one waits for the same supervisor, and does not start another beside it."""
    root = tmp_path / "root"
    program = [sys.executable, "-c", KILLED_AFTER_STARTING_ONE, str(root), NAME]
    assert subprocess.run(program, cwd=Path(__file__).parents[2], check=False).returncode == 9
    try:
        launch(str(root), NAME).close()
        assert len(supervisors(root)) == 1
        wire.connect_supervisor(str(root), NAME).close()
    finally:
        for pid in supervisors(root):
            signal_quietly(pid, signal.SIGTERM)
        wait_while("the supervisor", lambda: supervisors(root))
    assert os.listdir(root) == []
