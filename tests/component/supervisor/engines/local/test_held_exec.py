"""A runtime's `exec` below a shell: what ends it."""

import os
import time

import pytest
import trio

from scrun.supervisor.children.processes import ChildEnv, child
from scrun.supervisor.engines.local.held_exec import HeldExec, held_command
from tests.harness import users
from tests.harness.processes import processes

ENV = ChildEnv({"PATH": users.PATH})


@pytest.mark.parametrize(
    "script",
    [
        "exec sleep {0}",
        # a runtime that has yet to start the program, and one that has handlers of its own
        "trap '' TERM; sleep 0.3; sleep {0}",
        "sleep 0.3; exec sleep {0}",
    ],
)
@pytest.mark.parametrize("after", [0, 0.01, 0.1])
async def test_a_cancellation_ends_it_whenever_it_comes(script: str, after: float) -> None:
    status = os.memfd_create("status")
    seconds = f"100.{time.monotonic_ns()}"  # nobody else's
    command = held_command(script.format(seconds), status)
    with trio.fail_after(3):
        async with child(command, ENV, pass_fds=[status], dies_with_us=False) as shell:
            with trio.move_on_after(after):
                await HeldExec(shell, status).ended()
    os.close(status)
    assert not [one for one in processes() if one.argv[-1:] == (seconds,)]
