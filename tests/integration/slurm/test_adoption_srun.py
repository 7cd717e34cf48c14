"""Containers that srun launches outlive their supervisor: srun has their streams."""

import os
import random
import signal
import subprocess
import time

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.adoption import (
    COUNT,
    UNTIL_TOLD,
    adopted,
    adoptions,
    asked_again,
    end,
    kill_all_supervisors,
    kill_now_and_then,
    kill_supervisor,
    numbers,
    output,
    told,
)
from tests.harness.life import Life
from tests.harness.processes import signal_quietly
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.oci_conf

BY_SRUN = '[slurm]\nlaunch = "container"\n'


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site("slurm-user", settings=BY_SRUN)


def test_one_that_runs_goes_on(site: Site) -> None:
    life = site.shell(UNTIL_TOLD).created(60).start(60).says("up", 30)
    for times in (1, 2):
        kill_supervisor(site)
        assert life.state()["status"] == "running"
        adopted(life, times=times)
    assert life.state()["annotations"]["org.scrun.launch"] == "container"
    assert site.must("exec", life.id, "echo", "in it") == "in it\n"
    site.must("pause", life.id)
    kill_supervisor(site)
    assert life.state()["status"] == "paused"
    site.must("resume", life.id)
    life.kill("USR1")
    assert life.wait(20) == 7
    assert life.state()["annotations"]["org.scrun.exit_status"] == "7"
    end(life)


def test_no_byte_is_lost_or_doubled_however_often_it_dies(site: Site, dice: random.Random) -> None:
    life = site.shell(COUNT.format(300_000)).created(60).start(60)
    kill_now_and_then(site, dice, 6)
    assert life.wait(90) == 7
    assert output(life) == numbers(300_000)
    assert adoptions(life)
    end(life)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_to_a_file(site: Site, dice: random.Random, stream: str) -> None:
    """For standard error a `cat` writes it, which outlives the supervisor, too."""
    path = site.base / "l" / "output"
    script = COUNT.format(100_000)
    if stream == "stderr":
        script = f"exec >&2; {script}"
    with path.open("wb") as file:
        to = {stream: file.fileno()}
        life = site.shell(script, **to).created(60).start(60)
    kill_now_and_then(site, dice, 4)
    assert life.wait(60) == 7
    assert path.read_bytes() == numbers(100_000)
    path.unlink()
    end(life)


def test_one_that_was_created_is_started(site: Site) -> None:
    life = site.shell(UNTIL_TOLD).created(60)
    for _ in range(2):
        kill_supervisor(site)
        assert life.state()["status"] == "created"
    life.start(60).says("up", 30)
    kill_supervisor(site)
    told(life)


def test_what_was_done_without_an_answer_is_no_error(site: Site) -> None:
    life = site.shell(UNTIL_TOLD).created()
    asked_again(life)
    told(life)


def test_start_at_the_same_moment(site: Site, dice: random.Random) -> None:
    """It is started once, whoever does it, and `start` does not fail."""
    for _ in range(8):
        life = site.shell(f"echo begun; {UNTIL_TOLD}").created(60)
        starting = site.popen("start", life.id, stdio=subprocess.DEVNULL)
        time.sleep(dice.uniform(0, 0.2))
        kill_all_supervisors(site)
        assert starting.wait(60) == 0
        life.says("up", 30)
        life.kill("USR1")
        assert life.wait(30) == 7
        assert output(life) == b"begun\nup\n"
        life.delete(60)
    site.settle(20)


@pytest.mark.parametrize("status", [0, 9])
def test_one_that_ends_meanwhile_has_its_status(site: Site, status: int) -> None:
    """Nobody was there to hear of it."""
    waits = "echo up; until [ -e /gate ]; do sleep 0.01; done; echo bye"
    life = site.shell(f"{waits}; exit {status}").created(60).start(60).says("up", 30)
    [supervisor] = site.supervisors()
    os.kill(supervisor, signal.SIGSTOP)
    (site.rootfs / "gate").touch()
    time.sleep(2)
    os.kill(supervisor, signal.SIGKILL)
    assert life.wait(30) == status
    assert output(life) == b"up\nbye\n"
    end(life)


def test_input_arrives_once_however_often_it_dies(site: Site, dice: random.Random) -> None:
    data = numbers(50_000)
    stdin, to = os.pipe()
    life = site.shell("while read n; do echo $n; done; exit 7", stdin=stdin).created(60).start(60)
    os.close(stdin)
    rest = memoryview(data)
    with open(to, "wb", buffering=0) as pipe:
        while rest:
            rest = rest[pipe.write(rest[:50_000]) :]
            kill_now_and_then(site, dice, 1)
    assert life.wait(90) == 7
    assert output(life) == data
    assert adoptions(life)
    end(life)


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


def test_the_size_of_a_terminal(site: Site) -> None:
    """Also if nobody was there to notice."""
    script = "trap 'stty size' WINCH; echo up; while :; do sleep 0.05; done"
    life = site.shell(script, terminal=True).created(60)
    terminal = life.terminal()
    terminal.resize(24, 80)
    life.start(60)
    terminal.read_until("up", 30)
    time.sleep(2)  # by then srun passes changes on
    [supervisor] = site.supervisors()
    os.kill(supervisor, signal.SIGSTOP)
    terminal.resize(31, 101)
    os.kill(supervisor, signal.SIGKILL)
    terminal.read_until("31 101", 30)
    life.kill("KILL")
    assert life.wait(30) == 137
    terminal.close()
    end(life)


def test_the_output_of_a_detached_run(site: Site, dice: random.Random) -> None:
    bundle = site.bundle_of("sh", "-c", COUNT.format(100_000))
    site.must("run", "--detach", "--bundle", bundle, "one", timeout=60)
    kill_now_and_then(site, dice, 4)
    wait_until("its end", lambda: '"stopped"' in site.must("state", "one"), 60)
    assert site.must("logs", "one").encode() == numbers(100_000)
    assert '"org.scrun.exit_status": "7"' in site.must("state", "one")
    site.must("delete", "--force", "one")
    site.settle(20)


def test_run_in_the_foreground_goes_on(site: Site, dice: random.Random) -> None:
    running = site.popen("run", "--bundle", site.bundle_of("sh", "-c", COUNT.format(100_000)), "a")
    assert running.stdout
    first = os.read(running.stdout.fileno(), 1)
    kill_now_and_then(site, dice, 4)
    out, _ = running.communicate(timeout=90)
    assert running.returncode == 7
    assert first + out == numbers(100_000)
    site.settle(20)


def test_its_job_is_cancelled_meanwhile(site: Site) -> None:
    life = site.shell(UNTIL_TOLD).created(60).start(60).says("up", 30)
    [job] = site.jobs()
    [supervisor] = site.supervisors()
    os.kill(supervisor, signal.SIGSTOP)
    cluster.slurm("scancel", job.split()[0])
    time.sleep(1)
    os.kill(supervisor, signal.SIGKILL)
    assert life.wait(60) == 122
    assert life.state()["annotations"]["org.scrun.reason"] == "cancelled"
    end(life)


def test_its_srun_is_killed_meanwhile(site: Site) -> None:
    life = site.shell(UNTIL_TOLD).created(60).start(60).says("up", 30)
    [supervisor] = site.supervisors()
    os.kill(supervisor, signal.SIGSTOP)
    for srun in (one for one in site.processes() if os.path.basename(one.argv[0]) == "srun"):
        signal_quietly(srun.pid)
    os.kill(supervisor, signal.SIGKILL)
    assert life.wait(60) == 137
    end(life)


def test_both_are_killed(site: Site) -> None:
    """Supervisor and keeper at once: all ends with them."""
    life = site.shell(UNTIL_TOLD).created(60).start(60).says("up", 30)
    site.kill_supervisors()
    assert life.wait(30) == 125
    life.delete(60)
    wait_while("the job", site.jobs, 30)
    site.settle(20)


def test_a_pod(site: Site) -> None:
    """Each member is a step of its own."""
    config = site.config("sh", "-c", UNTIL_TOLD)
    config["annotations"] = {"org.scrun.pod": f"{site.base.name}.together"}

    def member() -> Life:
        return site.life(config=config).created(60).start(60).says("up", 30)

    first, second = member(), member()
    kill_supervisor(site)
    third = member()  # at once: it waits for the others
    adopted(first, second)
    assert len(site.jobs()) == 1
    kill_supervisor(site)
    adopted(third)
    adopted(first, second, times=2)
    first.kill("USR1")
    assert first.wait(20) == 7
    first.delete(60)
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
        running = site.shell(UNTIL_TOLD, environment={"SLURM_JOB_ID": job}).created(60).start(60)
        running.says("up", 30)
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
        life = site.shell(UNTIL_TOLD, environment={"SLURM_JOB_ID": job}).created(60).start(60)
        life.says("up", 30)
        site.kill_supervisors()
        assert life.wait(60) == 125
        wait_while("its step", lambda: cluster.slurm("squeue", "-h", "-s", "-j", job), 30)
        life.delete(60)
        assert [known.split()[0] for known in cluster.jobs(site.user, "callers")] == [job]
    site.settle(20)
