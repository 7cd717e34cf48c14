"""The containers of a pod outlive their supervisor together, with the job that they share."""

import os
import random
import signal
import time

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.adoption import (
    COUNT,
    adopted,
    adoptions,
    begins,
    end,
    kill_now_and_then,
    kill_supervisor,
    member,
    numbers,
    output,
)
from tests.harness.life import Life
from tests.harness.wait import wait_while

pytestmark = pytest.mark.by_shim


def is_up(life: Life) -> Life:
    return life.says("up", 30)


def test_they_go_on_and_others_come(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    first, second = is_up(member(site)), is_up(member(site))
    [job] = site.jobs()
    kill_supervisor(site)
    third = is_up(member(site))  # at once: it waits for the others
    adopted(first, second)
    assert site.jobs()[0].split()[0] == job.split()[0]
    assert len(site.jobs()) == 1
    assert site.must("exec", second.id, "echo", "in it") == "in it\n"
    kill_supervisor(site)
    adopted(third)
    adopted(first, second, times=2)
    first.kill("USR1")
    first.ends(7, 60)
    assert [second.status, third.status] == ["running"] * 2
    kill_supervisor(site)
    adopted(second, times=3)
    second.kill("USR1")
    assert second.wait(20) == 7
    third.kill("USR1")
    assert third.wait(20) == 7
    wait_while("the job", site.jobs, 20)
    end(second, third)


def test_no_byte_of_them_is_lost_or_doubled(make_site: MakeSite, dice: random.Random) -> None:
    site = make_site("slurm-user")
    lives = [member(site, COUNT.format(400_000)) for _ in range(3)]
    kill_now_and_then(site, dice, 6)
    assert [life.wait(90) for life in lives] == [7, 7, 7]
    for life in lives:
        assert output(life) == numbers(400_000)
    assert any(adoptions(life) for life in lives)  # one may have ended before the first kill
    end(*lives)


def test_one_that_was_being_created_takes_nothing_with_it(
    make_site: MakeSite, dice: random.Random
) -> None:
    """Its record names the job of the others, too."""
    site = make_site("slurm-user")
    first = is_up(member(site))
    [job] = site.jobs()
    created = 0
    for times in range(1, 6):
        second = begins(site)
        time.sleep(dice.uniform(0.05, 0.5))
        kill_supervisor(site)
        adopted(first, times=times)
        created += second.create_status(60) == 0
        site.run("delete", "--force", second.id, timeout=60)
        assert [known.split()[0] for known in site.jobs()] == job.split()[:1]
        assert first.status == "running"
    first.kill("USR1")
    assert first.wait(20) == 7
    end(first)


def test_one_that_ends_meanwhile_has_its_status(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    waits = "echo up; until [ -e /gate ]; do sleep 0.01; done; echo bye; exit 9"
    first, second = is_up(member(site, waits)), is_up(member(site))
    supervisor = site.stopped_supervisor()
    (site.rootfs / "gate").touch()
    time.sleep(1)
    os.kill(supervisor, signal.SIGKILL)
    assert first.wait(30) == 9
    assert output(first) == b"up\nbye\n"
    first.delete(60)
    assert second.status == "running"
    second.kill("USR1")
    assert second.wait(20) == 7
    end(second)


def test_those_that_were_created_are_started(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    lives = [begins(site).created(60) for _ in range(2)]
    kill_supervisor(site)
    for life in lives:
        is_up(life.start(60)).kill("USR1")
        assert life.wait(20) == 7
    end(*lives)


def test_their_job_is_cancelled_meanwhile(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    lives = [is_up(member(site)) for _ in range(2)]
    supervisor = site.stopped_supervisor()
    cluster.slurm("scancel", site.jobs()[0].split()[0])
    time.sleep(1)
    os.kill(supervisor, signal.SIGKILL)
    assert [life.wait(60) for life in lives] == [122, 122]
    end(*lives)
