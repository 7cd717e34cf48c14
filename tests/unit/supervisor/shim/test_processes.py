"""What the shim sees of its children before it reaps them."""

import os
import signal
import time
from pathlib import Path

from scrun.supervisor.shim.processes import is_ending
from tests.harness.wait import wait_until


def test_a_child_that_is_ending() -> None:
    """Its files go when it is told to end, and not when it is reaped."""
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    try:
        assert not is_ending(pid)
        os.kill(pid, signal.SIGSTOP)
        wait_until("it is stopped", lambda: ") T " in Path(f"/proc/{pid}/stat").read_text())
        assert not is_ending(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
    wait_until("it has ended", lambda: is_ending(pid))
    os.waitpid(pid, 0)
    assert is_ending(pid)
