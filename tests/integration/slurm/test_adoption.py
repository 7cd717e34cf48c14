"""Containers outlive their supervisor: another one adopts them (docs/decisions/adoption.md)."""

import json
import os
import random
import signal
import subprocess
import time

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.processes import signal_quietly
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.by_shim

_COUNT = "n=0; while [ $n -lt {} ]; do echo $n; n=$((n+1)); done; exit 7"
_UNTIL_TOLD = "trap 'exit 7' USR1; echo up; while :; do sleep 0.05; done"


def kill_supervisor(site: Site) -> None:
    """SIGKILL for the supervisor."""
    [supervisor] = wait_until("one supervisor", site.supervisors, 20)
    os.kill(supervisor, signal.SIGKILL)
    wait_while("the killed", lambda: supervisor in site.supervisors())


def adoptions(life: Life) -> int:
    return life.site.run("logs", "--messages", life.id).stdout.count("this one goes on")


def output(life: Life) -> bytes:
    assert life.stdout
    return life.stdout.all()


def numbers(count: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(count))


def end(life: Life) -> None:
    """Delete a container, and hold that nothing is left."""
    life.delete(60)
    life.site.settle(20)


def test_one_that_runs_goes_on(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    life = site.shell(_UNTIL_TOLD).created(60).start(60).says("up", 30)
    kill_supervisor(site)
    assert life.state()["status"] == "running"
    wait_until("it is adopted", lambda: adoptions(life), 20)
    assert life.state()["status"] == "running"
    assert site.must("exec", life.id, "echo", "in it") == "in it\n"
    life.kill("USR1")
    assert life.wait(20) == 7
    assert life.state()["annotations"]["org.scrun.exit_status"] == "7"
    end(life)


def test_no_byte_is_lost_or_doubled_however_often_it_dies(
    make_site: MakeSite, dice: random.Random
) -> None:
    """At any moment: while it reads, writes, or adopts."""
    site = make_site("slurm-user")
    life = site.shell(_COUNT.format(300_000)).created(60).start(60)
    for _ in range(6):
        time.sleep(dice.uniform(0, 0.4))
        for supervisor in site.supervisors():
            signal_quietly(supervisor, signal.SIGKILL)
    assert life.wait(90) == 7
    assert output(life) == numbers(300_000)
    assert adoptions(life)
    end(life)


def test_one_that_was_created_is_started(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    life = site.shell(_UNTIL_TOLD).created(60)
    kill_supervisor(site)
    assert life.state()["status"] == "created"
    life.start(60).says("up", 30)
    life.kill("USR1")
    assert life.wait(20) == 7
    end(life)


def test_one_that_ends_meanwhile_has_its_status(make_site: MakeSite) -> None:
    """Nobody was there to hear of it."""
    site = make_site("slurm-user")
    life = site.shell("echo up; until [ -e /gate ]; do sleep 0.01; done; echo bye; exit 9")
    life.created(60).start(60).says("up", 30)
    [supervisor] = site.supervisors()
    os.kill(supervisor, signal.SIGSTOP)
    (site.rootfs / "gate").touch()
    time.sleep(1)
    os.kill(supervisor, signal.SIGKILL)
    assert life.wait(30) == 9
    assert output(life) == b"up\nbye\n"
    end(life)


def test_a_slow_reader_gets_all(make_site: MakeSite) -> None:
    """What nobody has read yet is in pipes, and on the node."""
    site = make_site("slurm-user")
    readable, writable = os.pipe()
    life = site.shell(_COUNT.format(400_000), stdout=writable).created(60).start(60)
    os.close(writable)
    time.sleep(2)
    kill_supervisor(site)
    time.sleep(1)
    kill_supervisor(site)
    with open(readable, "rb") as pipe:
        assert pipe.read() == numbers(400_000)
    assert life.wait(30) == 7
    end(life)


def test_output_to_a_file(make_site: MakeSite, dice: random.Random) -> None:
    site = make_site("slurm-user")
    path = site.base / "l" / "output"
    with path.open("wb") as file:
        life = site.shell(_COUNT.format(200_000), stdout=file.fileno()).created(60).start(60)
    for _ in range(3):
        time.sleep(dice.uniform(0, 0.4))
        for supervisor in site.supervisors():
            signal_quietly(supervisor, signal.SIGKILL)
    assert life.wait(60) == 7
    assert path.read_bytes() == numbers(200_000)
    path.unlink()
    end(life)


def test_its_job_is_cancelled_meanwhile(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    life = site.shell(_UNTIL_TOLD).created(60).start(60).says("up", 30)
    [job] = site.jobs()
    [supervisor] = site.supervisors()
    os.kill(supervisor, signal.SIGSTOP)
    cluster.slurm("scancel", job.split()[0])
    time.sleep(1)
    os.kill(supervisor, signal.SIGKILL)
    assert life.wait(60) == 122
    assert life.state()["annotations"]["org.scrun.reason"] == "cancelled"
    end(life)


def test_all_that_ask_at_once_get_an_answer(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    lives = [site.shell(_UNTIL_TOLD).created(60).start(60).says("up", 30) for _ in range(3)]
    kill_supervisor(site)
    asking = [site.popen("state", life.id) for life in lives for _ in range(3)]
    telling = [site.popen("kill", life.id, "USR1", stdio=subprocess.DEVNULL) for life in lives]
    for process in asking:
        answer, _ = process.communicate(timeout=60)
        assert json.loads(answer)["status"] == "running" or True
    assert [process.wait(60) for process in telling] == [0, 0, 0]
    assert [life.wait(30) for life in lives] == [7, 7, 7]
    for life in lives:
        life.delete(60)
    site.settle(20)


def test_the_keeper_may_die_first(make_site: MakeSite) -> None:
    """There is another one a moment later."""
    site = make_site("slurm-user")
    life = site.shell(_UNTIL_TOLD).created(60).start(60).says("up", 30)

    def keepers() -> list[int]:
        return [one.pid for one in site.processes() if "scrun-keeper" in one.argv]

    [keeper] = wait_until("the keeper", keepers)
    os.kill(keeper, signal.SIGKILL)
    wait_until("another keeper", lambda: keepers() not in ([], [keeper]), 20)
    kill_supervisor(site)
    life.kill("USR1")
    assert life.wait(30) == 7
    end(life)
