"""What tests of adoption share: supervisors that are killed, and containers that go on."""

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.harness.life import Life
from tests.harness.processes import signal_quietly
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

COUNT = "n=0; while [ $n -lt {} ]; do echo $n; n=$((n+1)); done; exit 7"
"""Says all numbers below one, and ends with status 7."""

UNTIL_TOLD = "trap 'exit 7' USR1; echo up; while :; do sleep 0.05; done"
"""Runs until it is told to end, with status 7."""


ECHO = ("sh", "-c", "while read n && [ $n != end ]; do echo got $n; done; exit 9")
"""A program that answers to each line, until `end`; it ends with status 9."""


def echoes(program: "subprocess.Popen[bytes]") -> None:
    """Hold that `ECHO` answers, to one line after the other."""
    assert program.stdin
    assert program.stdout
    for number in range(100):
        program.stdin.write(b"%d\n" % number)
        program.stdin.flush()
        assert program.stdout.readline() == b"got %d\n" % number


def ends(program: "subprocess.Popen[bytes]") -> None:
    """Have `ECHO` end, with its own status."""
    output, _ = program.communicate(b"end\n", timeout=30)
    assert (output, program.returncode) == (b"", 9)


def kill_supervisor(site: Site) -> None:
    """SIGKILL for the supervisor."""
    [supervisor] = wait_until("one supervisor", site.supervisors, 20)
    os.kill(supervisor, signal.SIGKILL)
    wait_while("the killed", lambda: supervisor in site.supervisors())


def kill_all_supervisors(site: Site) -> None:
    """SIGKILL for those that there are; perhaps none at this moment."""
    for supervisor in site.supervisors():
        signal_quietly(supervisor, signal.SIGKILL)


def kill_now_and_then(site: Site, dice: random.Random, times: int) -> None:
    """SIGKILL for whichever supervisors there are, several times."""
    for _ in range(times):
        time.sleep(dice.uniform(0, 0.4))
        kill_all_supervisors(site)


def adoptions(life: Life) -> int:
    """How often a container was adopted."""
    return life.site.run("logs", "--messages", life.id).stdout.count("this one goes on")


def adopted(*lives: Life, times: int = 1) -> None:
    """Wait until all of them were adopted so often."""

    def known() -> list[int]:
        return [adoptions(life) for life in lives]

    wait_until("they are adopted", lambda: known() == [times] * len(lives), 20)


def output(life: Life) -> bytes:
    """All that it has said."""
    assert life.stdout
    return life.stdout.all()


def numbers(count: int) -> bytes:
    """What `COUNT` says."""
    return b"".join(b"%d\n" % number for number in range(count))


def end(*lives: Life) -> None:
    """Delete containers, and hold that nothing is left."""
    for life in lives:
        life.delete(60)
    lives[0].site.settle(20)


def told(*lives: Life) -> None:
    """They end as they are told, with their own status."""
    for life in lives:
        life.kill("USR1")
    assert [life.wait(60) for life in lives] == [7] * len(lives)
    end(*lives)


@contextmanager
def written(to: int, data: bytes) -> Iterator[None]:
    """Write all of it beside the block, then close the descriptor."""

    def write() -> None:
        with open(to, "wb", buffering=0) as pipe, suppress(BrokenPipeError):
            rest = memoryview(data)
            while rest:
                rest = rest[pipe.write(rest) :]

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()
