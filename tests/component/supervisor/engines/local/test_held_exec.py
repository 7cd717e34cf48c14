"""A runtime's `exec` below a shell: what ends it."""

import time

import pytest
import trio

from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.engine import Program
from scrun.supervisor.core.deposits import no_deposit
from scrun.supervisor.engines.local.held_exec import HeldSession, OwnPrograms, begun
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
    seconds = f"100.{time.monotonic_ns()}"  # nobody else's
    program = Program({}, (0, 1, 2), terminal=False, program_is_known=True, running=lambda: None)
    opened = begun(script.format(seconds), ENV, program, OwnPrograms(no_deposit()))
    with trio.fail_after(3):
        with trio.move_on_after(after):
            await HeldSession(opened).run()
        await trio.lowlevel.checkpoint()
    assert not [one for one in processes() if one.argv[-1:] == (seconds,)]
