"""Containers that srun launches outlive their supervisor: srun has their streams."""

import os
import random
import signal
import time

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.adoption import (
    BY_SRUN,
    COUNT,
    UNTIL_TOLD,
    adopted,
    adoptions,
    end,
    kill_now_and_then,
    kill_supervisor,
    member,
    numbers,
    output,
    told,
)
from tests.harness.processes import signal_quietly
from tests.harness.site import Site
from tests.harness.wait import wait_while

pytestmark = pytest.mark.oci_conf


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site("slurm-user", settings=BY_SRUN)


@pytest.mark.nightly
def test_a_writer_sees_that_the_container_has_closed_its_input(site: Site) -> None:
    """srun has the only other end."""
    life = site.shell(f"echo up; read line; {UNTIL_TOLD}", stdin="pipe").created(60)
    kill_supervisor(site)
    life.start(60).says("up", 30)
    kill_supervisor(site)
    os.write(life.stdin, b"go on\n")
    adopted(life, times=2)
    life.kill("KILL")
    assert life.wait(30) == 137
    with pytest.raises(BrokenPipeError):
        os.write(life.stdin, b"more\n")
    end(life)


@pytest.mark.nightly
def test_a_terminal(site: Site) -> None:
    echo = "stty -echo; echo up; while read n && [ $n != end ]; do echo got $n; done; exit 7"
    life = site.shell(echo, terminal=True).created(60)
    terminal = life.terminal()
    life.start(60)
    terminal.read_until("up", 30)
    for number in range(3):
        kill_supervisor(site)
        terminal.write(f"{number}\n")
        terminal.read_until(f"got {number}", 30)  # srun answers, whoever is there
        adopted(life, times=number + 1)
    terminal.write("end\n")
    assert life.wait(60) == 7
    terminal.close()
    end(life)


@pytest.mark.nightly
def test_the_size_of_a_terminal(site: Site) -> None:
    """Also if nobody was there to notice."""
    script = "trap 'stty size' WINCH; echo up; while :; do sleep 0.05; done"
    life = site.shell(script, terminal=True).created(60)
    terminal = life.terminal()
    terminal.resize(24, 80)
    life.start(60)
    terminal.read_until("up", 30)
    time.sleep(2)  # by then srun passes changes on
    supervisor = site.stopped_supervisor()
    terminal.resize(31, 101)
    os.kill(supervisor, signal.SIGKILL)
    terminal.read_until("31 101", 30)
    life.kill("KILL")
    assert life.wait(30) == 137
    terminal.close()
    end(life)


def test_its_srun_is_killed_meanwhile(site: Site) -> None:
    life = site.shell(UNTIL_TOLD).created(60).start(60).says("up", 30)
    supervisor = site.stopped_supervisor()
    for srun in (one for one in site.processes() if os.path.basename(one.argv[0]) == "srun"):
        signal_quietly(srun.pid)
    os.kill(supervisor, signal.SIGKILL)
    assert life.wait(60) == 137
    end(life)


@pytest.mark.nightly
def test_a_pod(site: Site) -> None:
    """Each member is a step of its own."""
    first, second = (member(site).says("up", 30) for _ in range(2))
    kill_supervisor(site)
    third = member(site).says("up", 30)  # at once: it waits for the others
    adopted(first, second)
    assert len(site.jobs()) == 1
    kill_supervisor(site)
    adopted(third)
    adopted(first, second, times=2)
    first.kill("USR1")
    first.ends(7, 60)
    assert site.must("exec", second.id, "echo", "in it") == "in it\n"
    kill_supervisor(site)
    told(second, third)


def test_several_tasks(site: Site, dice: random.Random) -> None:
    site.environment |= {"SCRUN_JOB_NUM_NODES": "2", "SCRUN_NTASKS": "2"}
    life = site.shell(COUNT.format(100_000)).created(60).start(60)
    kill_now_and_then(site, dice, 4)
    assert life.wait(90) == 7
    assert sorted(output(life).split()) == sorted(numbers(100_000).split() * 2)
    assert adoptions(life)
    end(life)


def test_in_a_job_of_the_callers(site: Site) -> None:
    """One that runs goes on, and one that is created is started."""
    with cluster.callers_job(site.user) as job:
        running = (
            site.shell(UNTIL_TOLD, environment={"SLURM_JOB_ID": job})
            .created(60)
            .start(60)
            .says("up", 30)
        )
        created = site.shell(UNTIL_TOLD, environment={"SLURM_JOB_ID": job}).created(60)
        for times in (1, 2):
            kill_supervisor(site)
            adopted(running, created, times=times)
        created.start(60).says("up", 30)
        kill_supervisor(site)
        told(running, created)
        assert [known.split()[0] for known in cluster.jobs(site.user, "callers")] == [job]


def test_in_a_job_of_the_callers_nobody_adopts_it(site: Site) -> None:
    """Its step ends, and the job stays."""
    with cluster.callers_job(site.user) as job:
        life = (
            site.shell(UNTIL_TOLD, environment={"SLURM_JOB_ID": job})
            .created(60)
            .start(60)
            .says("up", 30)
        )
        site.kill_supervisors()
        assert life.wait(60) == 125
        wait_while("its step", lambda: cluster.slurm("squeue", "-h", "-s", "-j", job), 30)
        life.delete(60)
        assert [known.split()[0] for known in cluster.jobs(site.user, "callers")] == [job]
    site.settle(20)
