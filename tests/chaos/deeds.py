"""What is done to a life."""

import os
import signal
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from tests.chaos.life import Life

_LOOKING = 4.0


async def harm(life: "Life") -> None:
    """Do what the plan says, if there is anybody to do it to."""
    await _signal(life, signal.Signals["SIG" + life.plan.fault.deed])


async def _signal(life: "Life", number: signal.Signals) -> None:
    """Send a signal to the fault's target; one that is stopped goes on after a while."""
    pid = await _victim(life)
    if not pid:
        return
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if life.where.find(life.plan.fault.target) != pid:  # the number is somebody else's
            return
        signal.pidfd_send_signal(pidfd, number)
        life.hit(f"{number.name} to {life.plan.fault.target} {pid}")
        if number == signal.SIGSTOP:
            try:
                await trio.sleep(life.plan.pause)
            finally:
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
                life.note(f"SIGCONT to {pid}")
    except ProcessLookupError:
        return
    finally:
        os.close(pidfd)


async def _victim(life: "Life") -> int:
    """Wait for the fault's target to appear, or for the life to be past the moment."""
    pause = 0.002
    with trio.move_on_after(_LOOKING):
        while not (pid := life.where.find(life.plan.fault.target)):
            if life.moment is not life.plan.moment:
                return 0
            await trio.sleep(pause)
            pause = min(pause * 1.3, 0.02)
        return pid
    return 0
