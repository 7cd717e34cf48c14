"""What tests of adoption share: supervisors that are killed, and containers that go on."""

import _socket
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial

import pytest

from scrun.core.ready import ready
from scrun.protocol import wire
from tests.harness.daemons import Daemon
from tests.harness.life import Life
from tests.harness.nightly import nightly
from tests.harness.podman import Podman
from tests.harness.processes import signal_quietly
from tests.harness.site import Site
from tests.harness.wait import wait_until

COUNT = "n=0; while [ $n -lt {} ]; do echo $n; n=$((n+1)); done; exit 7"
"""Says all numbers below one, and ends with status 7."""

COUNTS = "trap 'exit 7' TERM; n=0; while :; do echo $n; n=$((n+1)); sleep 0.02; done"
"""Says one number after the other until TERM, then ends with status 7."""


UNTIL_TOLD = "trap 'exit 7' USR1; echo up; while :; do sleep 0.05; done"
"""Runs until it is told to end, with status 7."""


_MARKS = {"shim": pytest.mark.by_shim, "srun": pytest.mark.oci_conf}


def row(place: str, *more: object, then: bool = False) -> object:
    """A place where a test runs, and more that it is told: "shim" and "srun" are on nodes.

    Args:
        place: It.
        more: That.
        then: Whether this is for `tools/test --nightly`.
    """
    marks = [_MARKS[place]] if place in _MARKS else []
    return nightly(place, *more, marks=marks) if then else pytest.param(place, *more, marks=marks)


def at(*places: str, then: Sequence[str] = ()) -> pytest.MarkDecorator:
    """Where a test runs, and where else `tools/test --nightly` runs it."""
    rows = [row(place) for place in places] + [row(place, then=True) for place in then]
    return pytest.mark.parametrize("site", rows, indirect=True)


BY_SRUN = '[slurm]\nlaunch = "container"\n'
"""Settings with which srun makes containers, and has their streams."""


PENDING = "org.scrun.pending"
"""The annotation that says why a job waits."""


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


def begins(site: Site, script: str = UNTIL_TOLD) -> Life:
    """Begin to create a member of the one pod of a site."""
    config = site.config("sh", "-c", script)
    config["annotations"] = {"org.scrun.pod": f"{site.base.name}.together"}
    return site.life(config=config)


def member(site: Site, script: str = UNTIL_TOLD) -> Life:
    return begins(site, script).created(60).start(60)


def pending(site: Site, script: str = "echo ran; exit 7", *, started: bool = True) -> Life:
    """Make a container whose job waits, and which says why."""
    life = site.shell(script).created()
    if started:
        life.start()
    wait_until("a reason", lambda: PENDING in life.state()["annotations"], 20)
    return life


def kill_supervisor(site: Site) -> None:
    """SIGKILL for the supervisor; returns when its sockets are closed.

    In /proc it has lost its name before that, and who connected then was told to try again.
    """
    [supervisor] = wait_until("one supervisor", site.supervisors, 20)
    pidfd = os.pidfd_open(supervisor)
    with closing(os.fdopen(pidfd)):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        assert ready([pidfd], seconds=20)[0]


def kill_all_supervisors(site: Site) -> None:
    """SIGKILL for those that there are; perhaps none at this moment."""
    for supervisor in site.supervisors():
        signal_quietly(supervisor, signal.SIGKILL)


def kill_successors_too(site: Site) -> None:
    """SIGKILL for all supervisors, then for those that come in their place."""
    for _ in range(2):
        killed = wait_until("supervisors", site.supervisors, 20)
        for supervisor in killed:
            signal_quietly(supervisor, signal.SIGKILL)
        wait_until("successors", partial(_others, site, killed), 20)


def goes_on_with_all(engine: Podman | Daemon, container: str) -> None:
    """Kill the supervisors of a detached container of `COUNTS`, and their successors.

    Hold that its logs, their reader, programs of exec, its end and a second start are as they
    should be, and remove it.
    """
    wait_until("it is up", lambda: "\n9\n" in engine.must("logs", container), 30)
    pipe = subprocess.PIPE
    following = ("logs", "--follow", container)
    follower = engine.popen(*following, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    plain = ("exec", "--interactive", container, *ECHO)
    with engine.popen(*plain, stdin=pipe, stdout=pipe, stderr=pipe) as program:
        echoes(program)
        kill_successors_too(engine.site)
        assert engine.must("exec", container, "echo", "in it") == "in it\n"
        if engine.site.engine == "slurm" and os.environ.get("SCRUN_TEST_LAUNCH") == "container":
            assert program.wait(30)  # its step ends with the supervisor that asked for it
        else:
            echoes(program)
            ends(program)
    count = engine.must("logs", container).count("\n")
    wait_until("more", lambda: engine.must("logs", container).count("\n") > count + 10, 30)
    engine.must("stop", "--time", "20", container)
    assert engine.must("wait", container) == "7\n"
    followed, _ = follower.communicate(timeout=30)
    lines = engine.must("logs", container).split()
    assert lines == counted(len(lines))
    assert followed.decode().split() == lines
    engine.must("start", container)  # it can be run again
    engine.must("stop", "--time", "20", container)
    engine.must("rm", container)


def _others(site: Site, killed: list[int]) -> set[int]:
    return {*site.supervisors()} - {*killed}


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


def counted(count: int) -> list[str]:
    """The first lines of `COUNTS`."""
    return [str(number) for number in range(count)]


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


def asked_again(life: Life) -> None:
    """Start, pause and resume it by a supervisor that dies before it answers.

    Hold that its successor says the same to a command that asks again, and refuses what any other
    command asks for, as it is done already.
    """
    for operation, status in ((b"start", "running"), (b"pause", "paused"), (b"resume", "running")):
        fields = [operation, life.id.encode()]
        with closing(_connected(life)) as sock:
            wire.send(sock, fields)
            life.wait_for(status)
        kill_supervisor(life.site)
        assert life.state()["status"] == status
        for more, refused in (([b"1"], False), ([], True)):
            with closing(_connected(life)) as sock:
                wire.send(sock, [*fields, *more])
                answer = wire.receive(sock)
            assert bool(answer[0]) is refused, answer
        assert life.state()["status"] == status


def _connected(life: Life) -> "_socket.socket":
    """A connection to its supervisor, as soon as there is one."""

    def connect() -> "_socket.socket | None":
        with suppress(OSError):
            return wire.connect_supervisor(str(life.site.root / life.id), "supervisor")
        return None

    found = wait_until("a supervisor", connect, 20)
    assert found
    return found
