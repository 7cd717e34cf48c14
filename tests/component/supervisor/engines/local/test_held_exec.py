"""A runtime's `exec` below a shell: what ends it."""

import subprocess
import sys
import time

import pytest
import trio

from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.engine import Program
from scrun.supervisor.core.deposits import no_deposit
from scrun.supervisor.engines.local.held_exec import HeldSession, OwnPrograms, begun
from tests import CHECKOUT
from tests.harness import users
from tests.harness.processes import processes
from tests.harness.wait import wait_until, wait_while

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


RUNS = """
import sys, trio
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.engine import Program
from scrun.supervisor.core.deposits import no_deposit
from scrun.supervisor.engines.local.held_exec import HeldSession, OwnPrograms, begun

program = Program({}, (0, 1, 2), False, True, lambda: print("runs", flush=True))
env = ChildEnv({"PATH": sys.argv[1]})
opened = begun(f"exec sleep {sys.argv[2]}", env, program, OwnPrograms(no_deposit()))
trio.run(HeldSession(opened).run)
"""


def test_one_of_which_nothing_is_kept_ends_with_a_killed_supervisor() -> None:
    seconds = f"100.{time.monotonic_ns()}"

    def runs() -> bool:
        return any(one.argv[-1:] == (seconds,) and "sleep" in one.argv[0] for one in processes())

    command = [sys.executable, "-c", RUNS, users.PATH, seconds]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=CHECKOUT) as supervisor:
        assert supervisor.stdout
        assert supervisor.stdout.readline() == b"runs\n"
        wait_until("the program", runs)
        supervisor.kill()
    wait_while("the program", runs)
